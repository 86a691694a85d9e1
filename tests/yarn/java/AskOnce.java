import hscheduler.yarn.HSchedulerPolicy;
import java.lang.reflect.Method;
import org.apache.hadoop.conf.Configuration;

/** Asks H-scheduler once, as a round of the plugin does: URL SECRET_FILE DEADLINE_MS BYTES.  Prints how long it took. */
public final class AskOnce {
  public static void main(String[] args) throws Exception {
    Configuration conf = new Configuration(false);
    conf.set("eps.hscheduler.url", args[0]);
    conf.set("eps.hscheduler.secret-file", args[1]);
    conf.set("eps.hscheduler.deadline-ms", args[2]);
    HSchedulerPolicy policy = new HSchedulerPolicy();
    policy.init(conf, null, null);
    Method ask = HSchedulerPolicy.class.getDeclaredMethod("ask", String.class);
    ask.setAccessible(true);
    String text = new String(new char[Integer.parseInt(args[3])]).replace('\0', 'x');
    long began = System.nanoTime();
    ask.invoke(policy, text);
    System.out.println((System.nanoTime() - began) / 1_000_000);
  }
}
