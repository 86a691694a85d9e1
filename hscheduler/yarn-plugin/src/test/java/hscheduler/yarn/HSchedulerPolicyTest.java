package hscheduler.yarn;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.Assert.*;
import static org.mockito.Mockito.*;

import com.sun.net.httpserver.HttpServer;
import java.io.File;
import java.io.IOException;
import java.net.*;
import java.nio.file.*;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.*;
import org.apache.hadoop.yarn.event.*;
import org.apache.hadoop.yarn.proto.YarnServiceProtos.SchedulerResourceTypes;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceUsage;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerAppReport;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNodeReport;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.*;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.*;
import org.junit.*;
import org.junit.rules.TemporaryFolder;

/** The plugin between a ResourceManager of mocks and an H-scheduler of this process. */
public final class HSchedulerPolicyTest {
  private static final byte[] SECRET = "not told".getBytes(UTF_8);
  private static final long PATIENCE_MS = 20_000, ROUND_MS = 100;

  @Rule public TemporaryFolder folder = new TemporaryFolder();
  private final ConcurrentMap<ApplicationId, RMApp> apps = new ConcurrentHashMap<>();
  private final ConcurrentMap<NodeId, RMNode> nodes = new ConcurrentHashMap<>();
  private final RMContext context = mock(RMContext.class);
  private final CapacityScheduler scheduler = mock(CapacityScheduler.class);
  private final List<String> events = new CopyOnWriteArrayList<>();
  /** What H-scheduler was told, in lines of fields; and what it answers, without the moment. */
  private volatile List<List<String>> told = Collections.emptyList();
  private volatile String plan = "";
  private volatile byte[] itsSecret = SECRET;
  private final Semaphore asked = new Semaphore(0);
  private HttpServer server;
  private Configuration conf;
  private File secret;

  @Before public void begin() throws Exception {
    when(context.getRMApps()).thenReturn(apps);
    when(context.getRMNodes()).thenReturn(nodes);
    Dispatcher dispatcher = mock(Dispatcher.class);
    when(context.getDispatcher()).thenReturn(dispatcher);
    EventHandler<Event> handler = event -> {
      ContainerPreemptEvent one = (ContainerPreemptEvent) event;
      events.add(one.getType() + " " + one.getContainer().getContainerId());
    };
    when(dispatcher.getEventHandler()).thenReturn(handler);
    server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    when(scheduler.getSchedulingResourceTypes()).thenReturn(EnumSet.of(SchedulerResourceTypes.CPU));
    server.createContext("/plan", call -> {
      byte[] body = call.getRequestBody().readAllBytes();
      String digest = call.getRequestHeaders().getFirst("X-EPS-Digest");
      String proof = call.getRequestHeaders().getFirst("X-EPS-Proof");
      boolean holds = proof.equals(hmac(SECRET, "plan for " + digest)) && digest.equals(sha256(body));
      List<List<String>> lines = Arrays.stream(new String(body, UTF_8).split("\n"))
          .map(line -> Arrays.stream(line.split("\t", -1)).map(HSchedulerPolicyTest::decoded).collect(Collectors.toList()))
          .collect(Collectors.toList());
      String text = "hscheduler-plan\t3\nat\t" + lines.get(0).get(2) + "\nat\t" + lines.get(0).get(3) + "\n" + plan + "end\n";
      call.getResponseHeaders().add("X-EPS-Proof", hmac(itsSecret, "plan of " + proof + "\n" + text));
      call.sendResponseHeaders(holds ? 200 : 403, text.length());
      call.getResponseBody().write(text.getBytes(UTF_8));
      call.close();
      if (holds) told = lines;
      asked.release();
    });
    server.start();
    secret = folder.newFile("secret");
    Files.write(secret.toPath(), SECRET);
    Files.setPosixFilePermissions(secret.toPath(), PosixFilePermissions.fromString("rw-------"));
    conf = new Configuration(false);
    set("url", "http://127.0.0.1:" + server.getAddress().getPort());
    set("secret-file", secret.getPath());
    set("deadline-ms", "5000");
    set("max-age-ms", "20000");
    set("queues", "eps");
    queue("root.eps", LeafQueue.class);
    node("n1");
  }

  @After public void end() { server.stop(0); }

  @Test public void takesAMemberButNeverAMasterNorWhatHasEnded() throws Exception {
    RMApp job = app(1, "EPS", "eps", "ada", 3);
    plan = take(container(job, 1), container(job, 2), "container_1_0009_01_000009");
    rounds(policy(), () -> !events.isEmpty());
    assertEquals(List.of("MARK_CONTAINER_FOR_PREEMPTION " + container(job, 2)), events);
    List<String> line = told.stream().filter(one -> one.get(0).equals("container")).skip(1).findFirst().get();
    assertEquals(List.of(job.getApplicationId().toString(), container(job, 2), "n1:1", "1024", "1", "false"), line.subList(1, 7));
  }

  @Test public void whoKnowsTheSecretReachesNothingOutsideTheConfiguredQueuesUsersAndType() throws Exception {
    queue("root.other", LeafQueue.class);
    RMApp other = app(2, "EPS", "other", "ada", 3), user = app(3, "EPS", "eps", "bob", 3);
    RMApp type = app(4, "MAPREDUCE", "eps", "ada", 3), mine = app(5, "EPS", "eps", "ada", 3);
    plan = take(container(other, 2), container(user, 2), container(type, 2), container(mine, 2));
    set("users", "ada, eve");
    rounds(policy(), () -> !events.isEmpty());
    assertEquals(List.of("MARK_CONTAINER_FOR_PREEMPTION " + container(mine, 2)), events);
    assertEquals(Set.of(mine.getApplicationId().toString()), named("app", 1));
  }

  @Test public void withoutConfigurationOnlyTheDefaultQueueIsServed() throws Exception {
    queue("root.default", LeafQueue.class);
    app(1, "EPS", "eps", "ada", 2);
    RMApp served = app(2, "EPS", "default", "ada", 2);
    conf.unset("eps.hscheduler.queues");
    rounds(policy(), () -> !told.isEmpty());
    assertEquals(Set.of(served.getApplicationId().toString()), named("app", 1));
  }

  @Test public void aQueueThatYarnMadeByItselfBelowOneThatIsNamedIsServedAndTold() throws Exception {
    queue("root.eps.ada", AutoCreatedLeafQueue.class);
    queue("root.epsilon", LeafQueue.class);
    RMApp job = app(1, "EPS", "root.eps.ada", "ada", 2);
    app(2, "EPS", "root.epsilon", "ada", 2);
    rounds(policy(), () -> !told.isEmpty());
    assertEquals(Set.of(job.getApplicationId().toString()), named("app", 1));
    assertEquals(Set.of("root.eps.ada"), named("queue", 1));
  }

  @Test public void aUserWhoHasLeftAQueueMeanwhileIsLeftOut() throws Exception {
    app(1, "EPS", "eps", "ada", 2);
    rounds(policy(), () -> !told.isEmpty());
    assertEquals(Set.of("ada"), named("user", 2));
  }

  @Test public void whatIsNotGivenBackInTimeIsKilledAndWhatIsSparedIsNot() throws Exception {
    RMApp job = app(1, "EPS", "eps", "ada", 4);
    set("grace-ms", "0");
    plan = take(container(job, 2)) + "spare\t" + container(job, 3) + "\n";
    rounds(policy(), () -> events.size() > 1);
    assertEquals("MARK_CONTAINER_FOR_PREEMPTION " + container(job, 2), events.get(0));
    assertEquals("MARK_CONTAINER_FOR_KILLABLE " + container(job, 2), events.get(1));
    set("grace-ms", "600000");
    events.clear();
    HSchedulerPolicy patient = policy();
    rounds(patient, () -> !events.isEmpty());
    plan = "spare\t" + container(job, 2) + "\n";
    told = Collections.emptyList();
    rounds(patient, () -> marked().isEmpty() && !told.isEmpty());
    assertEquals(1, events.size());
  }

  @Test public void anAnswerOfWhoDoesNotKnowTheSecretCountsNowhere() throws Exception {
    RMApp job = app(1, "EPS", "eps", "ada", 3);
    itsSecret = "guessed".getBytes(UTF_8);
    plan = take(container(job, 2));
    HSchedulerPolicy policy = policy();
    for (int i = 0; i < 3; i++) {
      told = Collections.emptyList();
      rounds(policy, () -> !told.isEmpty());
    }
    assertEquals(List.of(), events);
  }

  @Test public void hSchedulerOnAnotherHostIsNeverAsked() throws Exception {
    for (String url : List.of("http://192.0.2.1:80", "nowhere", "")) {
      set("url", url);
      app(1, "EPS", "eps", "ada", 2);
      policy().editSchedule();
      verify(context, never()).getRMApps();
    }
  }

  @Test public void aCallEndsAtItsDeadlineWhereNobodyReadsIt() throws Exception {
    try (ServerSocket stopped = new ServerSocket()) {
      // The system connects for a process that does nothing any more.
      stopped.setReceiveBufferSize(4096);
      stopped.bind(new InetSocketAddress("127.0.0.1", 0));
      PlanCall call = new PlanCall("http://127.0.0.1:" + stopped.getLocalPort(), secret.getPath(), 500);
      long beganMs = System.nanoTime() / 1_000_000;
      assertThrows(IOException.class, () -> call.ask(String.join("", Collections.nCopies(4 << 20, "x"))));
      long tookMs = System.nanoTime() / 1_000_000 - beganMs;
      assertTrue("took " + tookMs + " ms", tookMs >= 250 && tookMs < PATIENCE_MS);
    }
  }

  @Test public void aPlanThatIsCutOffOrNoneIsRefused() throws Exception {
    String text = "hscheduler-plan\t3\nat\tlife\nat\t12\ntake\tc_1\nsay\ta+b%09\nend\n";
    Map<String, List<String>> read = PlanCall.parse(text);
    assertEquals(List.of("life", "12"), read.get("at"));
    assertEquals(List.of("c_1"), read.get("take"));
    assertEquals(List.of("a b\t"), read.get("say"));
    for (int end = 0; end < text.length(); end++) {
      String cut = text.substring(0, end);
      assertThrows(cut, IOException.class, () -> PlanCall.parse(cut));
    }
    for (String wrong : List.of(text.replace("\t3\n", "\t2\n"), text.replace("take", "kill"), text.replace("at\tlife\n", ""))) {
      assertThrows(wrong, IOException.class, () -> PlanCall.parse(wrong));
    }
  }

  @Test public void aSnapshotThatIsTooLargeIsNotSent() throws Exception {
    PlanCall call = new PlanCall(conf.get("eps.hscheduler.url"), secret.getPath(), 5000);
    String text = String.join("", Collections.nCopies((4 << 20) + 1, "x"));
    assertTrue(assertThrows(IOException.class, () -> call.ask(text)).getMessage().contains("too large"));
    assertEquals(List.of(), told);
  }

  // ---- what the tests are made of
  private void set(String key, String value) { conf.set("eps.hscheduler." + key, value); }

  private HSchedulerPolicy policy() {
    HSchedulerPolicy made = new HSchedulerPolicy();
    made.init(conf, context, scheduler);
    return made;
  }

  /** Has rounds go on until something holds; each lasts until H-scheduler has answered, as far as it is asked. */
  private void rounds(HSchedulerPolicy policy, BooleanSupplier holds) throws InterruptedException {
    long endMs = System.nanoTime() / 1_000_000 + PATIENCE_MS;
    do {
      assertTrue("in vain", System.nanoTime() / 1_000_000 < endMs);
      policy.editSchedule();
      asked.tryAcquire(ROUND_MS, TimeUnit.MILLISECONDS);
    } while (!holds.getAsBoolean());
  }

  private Set<String> named(String word, int field) {
    return told.stream().filter(one -> one.get(0).equals(word)).map(one -> one.get(field)).collect(Collectors.toSet());
  }

  private Set<String> marked() {
    return told.stream().filter(one -> one.get(0).equals("container") && one.get(8).equals("true"))
        .map(one -> one.get(2)).collect(Collectors.toSet());
  }

  private static String take(String... containers) {
    return Arrays.stream(containers).map(one -> "take\t" + one + "\n").collect(Collectors.joining());
  }

  private static String container(RMApp app, int number) {
    return ContainerId.newContainerId(ApplicationAttemptId.newInstance(app.getApplicationId(), 1), number).toString();
  }

  /** An application that runs and holds so many containers, the first its master's. */
  private RMApp app(int number, String type, String queue, String user, int containers) {
    ApplicationId id = ApplicationId.newInstance(1, number);
    ApplicationAttemptId attemptId = ApplicationAttemptId.newInstance(id, 1);
    RMApp app = mock(RMApp.class, RETURNS_DEEP_STUBS);
    RMAppAttempt attempt = mock(RMAppAttempt.class);
    when(app.getApplicationId()).thenReturn(id);
    when(app.getApplicationType()).thenReturn(type);
    when(app.getQueue()).thenReturn(queue);
    when(app.getUser()).thenReturn(user);
    when(app.createApplicationState()).thenReturn(YarnApplicationState.RUNNING);
    when(app.getCurrentAppAttempt()).thenReturn(attempt);
    when(attempt.getAppAttemptId()).thenReturn(attemptId);
    List<RMContainer> held = new ArrayList<>();
    for (int i = 1; i <= containers; i++) {
      RMContainer one = mock(RMContainer.class, RETURNS_DEEP_STUBS);
      when(one.getContainerId()).thenReturn(ContainerId.newContainerId(attemptId, i));
      when(one.getAllocatedResource()).thenReturn(Resource.newInstance(1024, 1));
      when(one.getAllocatedNode()).thenReturn(NodeId.newInstance("n1", 1));
      when(one.isAMContainer()).thenReturn(i == 1);
      held.add(one);
    }
    SchedulerAppReport report = mock(SchedulerAppReport.class);
    when(report.getLiveContainers()).thenReturn(held);
    when(scheduler.getSchedulerAppInfo(attemptId)).thenReturn(report);
    apps.put(id, app);
    return app;
  }

  /** A leaf with two users, of whom one has just left. */
  private void queue(String path, Class<? extends CSQueue> kind) {
    CSQueue queue = mock(kind);
    UsersManager users = mock(UsersManager.class);
    UsersManager.User user = mock(UsersManager.User.class);
    UserInfo ada = mock(UserInfo.class), left = mock(UserInfo.class);
    when(ada.getUsername()).thenReturn("ada");
    when(left.getUsername()).thenReturn("left");
    when(users.getUsersInfo()).thenReturn(new ArrayList<>(List.of(ada, left)));
    when(users.getUserLimitFactor()).thenReturn(1.0f);
    when(users.getUser("ada")).thenReturn(user);
    Resource some = Resource.newInstance(4096, 4);
    when(user.getUsed("")).thenReturn(some);
    ResourceUsage usage = mock(ResourceUsage.class);
    when(usage.getUsed("")).thenReturn(some);
    when(queue.getQueueResourceUsage()).thenReturn(usage);
    when(queue.getEffectiveMaxCapacity("")).thenReturn(some);
    when(queue.getEffectiveCapacity("")).thenReturn(some);
    when(queue.getAbstractUsersManager()).thenReturn(users);
    when(queue.getQueuePath()).thenReturn(path);
    when(scheduler.getQueue(path)).thenReturn(queue);
    when(scheduler.getQueue(path.substring(path.lastIndexOf('.') + 1))).thenReturn(queue);
  }

  private void node(String host) {
    NodeId id = NodeId.newInstance(host, 1);
    RMNode node = mock(RMNode.class);
    SchedulerNodeReport report = mock(SchedulerNodeReport.class);
    when(node.getNodeID()).thenReturn(id);
    when(node.getState()).thenReturn(NodeState.RUNNING);
    when(report.getAvailableResource()).thenReturn(Resource.newInstance(0, 0));
    when(scheduler.getNodeReport(id)).thenReturn(report);
    nodes.put(id, node);
  }

  private static String decoded(String field) {
    try {
      return URLDecoder.decode(field, "UTF-8");
    } catch (IOException error) {
      throw new AssertionError(error);
    }
  }

  private static String sha256(byte[] body) {
    try {
      return hex(MessageDigest.getInstance("SHA-256").digest(body));
    } catch (java.security.GeneralSecurityException error) {
      throw new AssertionError(error);
    }
  }

  private static String hmac(byte[] secret, String text) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(secret, "HmacSHA256"));
      return hex(mac.doFinal(text.getBytes(UTF_8)));
    } catch (java.security.GeneralSecurityException error) {
      throw new AssertionError(error);
    }
  }

  private static String hex(byte[] bytes) {
    StringBuilder text = new StringBuilder();
    for (byte one : bytes) text.append(String.format("%02x", one));
    return text.toString();
  }
}
