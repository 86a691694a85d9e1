package hscheduler.yarn;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.*;
import java.math.BigInteger;
import java.net.*;
import java.nio.file.*;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.*;
import java.util.*;
import java.util.concurrent.*;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Asks H-scheduler, on this host, for a plan: HTTP, with proofs that either side knows the secret, and a deadline. */
final class PlanCall {
  private static final String PROOF = "X-EPS-Proof", DIGEST = "X-EPS-Digest";
  /** Of a snapshot, and of an answer. */
  private static final int MOST_BYTES = 4 << 20, MOST_ANSWER = 1 << 20;
  /** Ends calls at their deadline. */
  private static final ScheduledExecutorService DEADLINES = Executors.newSingleThreadScheduledExecutor(
      task -> { Thread made = new Thread(task, "hscheduler-deadline"); made.setDaemon(true); return made; });

  private final String url;
  private final Path secretFile;
  private final int deadlineMs;

  PlanCall(String url, String secretFile, int deadlineMs) {
    this.url = url;
    this.secretFile = Paths.get(secretFile);
    this.deadlineMs = deadlineMs;
  }

  /** Returns whether a URL is of the loopback interface: what is said is not encrypted. */
  static boolean isOnThisHost(String url) {
    try {
      return InetAddress.getByName(new URL(url).getHost()).isLoopbackAddress();
    } catch (IOException error) {
      return false;
    }
  }

  /** Returns the plan for a snapshot: what stands behind each word (at, take, spare, say). */
  Map<String, List<String>> ask(String text) throws IOException, GeneralSecurityException {
    long endNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(deadlineMs);
    byte[] body = text.getBytes(UTF_8), secret = secret();
    if (body.length > MOST_BYTES) throw new IOException("a snapshot of " + body.length + " bytes is too large");
    String digest = hex(MessageDigest.getInstance("SHA-256").digest(body));
    String proof = proof(secret, "plan for " + digest, new byte[0]);
    HttpURLConnection call = (HttpURLConnection) new URL(url + "/plan").openConnection(Proxy.NO_PROXY);
    call.setConnectTimeout(deadlineMs);
    call.setReadTimeout(deadlineMs);
    call.setDoOutput(true);
    call.setFixedLengthStreamingMode(body.length);
    call.setRequestProperty("Connection", "close");
    call.setRequestProperty(PROOF, proof);
    call.setRequestProperty(DIGEST, digest);
    OutputStream connected = call.getOutputStream();
    // Java's own deadlines are not about what is written.  Ended before it has connected, a call connects once more.
    DEADLINES.schedule(call::disconnect, endNs - System.nanoTime(), TimeUnit.NANOSECONDS);
    connected.write(body);
    if (call.getResponseCode() != 200) throw new IOException(url + " answers " + call.getResponseCode());
    int length = call.getContentLength();
    if (length < 0 || length > MOST_ANSWER) throw new IOException("its answer is too long, or does not say how long");
    byte[] answer = new byte[length];
    new DataInputStream(call.getInputStream()).readFully(answer);
    byte[] expected = proof(secret, "plan of " + proof + "\n", answer).getBytes(UTF_8);
    if (!MessageDigest.isEqual(expected, Objects.toString(call.getHeaderField(PROOF)).getBytes(UTF_8))) {
      throw new IOException("the answer of " + url + " does not prove that it knows the secret");
    }
    return parse(new String(answer, UTF_8));
  }

  static Map<String, List<String>> parse(String text) throws IOException {
    Map<String, List<String>> plan = new HashMap<>();
    for (String word : Arrays.asList("at", "take", "spare", "say")) plan.put(word, new ArrayList<>());
    if (!text.matches("(?s)hscheduler-plan\t3\n.*\nend\n")) throw new IOException("the answer is no plan");
    String[] lines = text.split("\n");
    for (String line : Arrays.asList(lines).subList(1, lines.length - 1)) {
      String[] words = line.split("\t", -1);
      if (words.length != 2 || !plan.containsKey(words[0])) throw new IOException("the answer has a line of no plan");
      plan.get(words[0]).add(URLDecoder.decode(words[1], "UTF-8"));
    }
    if (plan.get("at").size() != 2) throw new IOException("the plan does not say of when it is");
    return plan;
  }

  private byte[] secret() throws IOException {
    String rights = PosixFilePermissions.toString(Files.getPosixFilePermissions(secretFile));
    if (!rights.endsWith("------")) throw new IOException(secretFile + " must be its owner's alone, but has " + rights);
    return new String(Files.readAllBytes(secretFile), UTF_8).trim().getBytes(UTF_8);
  }

  private static String proof(byte[] secret, String what, byte[] body) throws GeneralSecurityException {
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(secret, "HmacSHA256"));
    mac.update(what.getBytes(UTF_8));
    return hex(mac.doFinal(body));
  }

  private static String hex(byte[] found) { return String.format("%064x", new BigInteger(1, found)); }
}
