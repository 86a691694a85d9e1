package hscheduler.yarn;

import java.io.IOException;
import java.net.URLEncoder;
import java.security.GeneralSecurityException;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.*;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.monitor.SchedulingEditPolicy;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.*;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.*;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.*;
import org.slf4j.*;

/**
 * Tells H-scheduler what EPS applications hold and wait for, and marks for preemption what its plan takes back, so
 * that jobs get YARN's own PreemptionMessage.  Rounds run on the monitor's thread and never wait; one thread of its own
 * talks to H-scheduler.  Whatever fails there, the ResourceManager goes on as if this were not loaded.  H-scheduler is
 * told of applications of one type in the queues, and of the users, that yarn-site.xml names: it cannot take from others.
 * Both texts are described in hscheduler/yarn/wire.py, the keys of yarn-site.xml in the README beside the pom.
 */
public final class HSchedulerPolicy implements SchedulingEditPolicy {
  private static final Logger LOG = LoggerFactory.getLogger(HSchedulerPolicy.class);
  private static final String KEY = "eps.hscheduler.";
  private static final int QUIET_MS = 60_000;

  /** Names this ResourceManager's life: an answer to the one before counts nowhere. */
  private final String instance = UUID.randomUUID().toString();
  /** One thread, which goes when it has nothing to do; a round that finds it busy sends nothing. */
  private final ThreadPoolExecutor caller = new ThreadPoolExecutor(0, 1, 30, TimeUnit.SECONDS, new SynchronousQueue<>(),
      task -> { Thread made = new Thread(task, "hscheduler-policy"); made.setDaemon(true); return made; },
      new ThreadPoolExecutor.DiscardPolicy());
  /** The latest plan, until it is looked at: what stands behind each word (at, take, spare, say). */
  private final AtomicReference<Map<String, List<String>>> answered = new AtomicReference<>();
  /** Container that was marked, when (ms). */
  private final Map<String, Long> marked = new HashMap<>();
  private RMContext context;
  private ResourceScheduler scheduler;
  /** None where H-scheduler is never asked. */
  private PlanCall call;
  private String type;
  private List<String> queues, users;
  private long intervalMs, maxAgeMs, graceMs;
  /** The moment that the latest plan is about, and that of the latest mark, which no earlier plan knew of; or -1. */
  private long heardMs = -1, changedMs = -1;
  private volatile long complainedMs = nowMs() - QUIET_MS;

  @Override public void init(Configuration conf, RMContext rmContext, ResourceScheduler resourceScheduler) {
    context = rmContext;
    scheduler = resourceScheduler;
    type = conf.getTrimmed(KEY + "application-type", "EPS");
    queues = Arrays.asList(conf.getTrimmedStrings(KEY + "queues", "default"));
    users = Arrays.asList(conf.getTrimmedStrings(KEY + "users"));
    intervalMs = Math.max(100, conf.getLong(KEY + "interval-ms", 1000));
    maxAgeMs = conf.getLong(KEY + "max-age-ms", 5000);
    graceMs = conf.getLong(KEY + "grace-ms", 15_000);
    String url = conf.getTrimmed(KEY + "url", ""), secretFile = conf.getTrimmed(KEY + "secret-file", "");
    if (secretFile.isEmpty() || !PlanCall.isOnThisHost(url)) {
      LOG.warn("H-scheduler is never asked: {}url is '{}', but must be http://127.0.0.1:PORT, and {}secret-file is '{}', "
          + "but must be a file", KEY, url, KEY, secretFile);
      return;
    }
    call = new PlanCall(url, secretFile, Math.max(1, conf.getInt(KEY + "deadline-ms", 200)));
    LOG.info("H-scheduler: asked at {} every {} ms, of queues {} and {}", url, intervalMs, queues,
        users.isEmpty() ? "all users" : "users " + users);
  }

  @Override public long getMonitoringInterval() { return intervalMs; }
  @Override public String getPolicyName() { return HSchedulerPolicy.class.getName(); }

  @Override public void editSchedule() {
    if (call == null) return;
    try {
      long now = nowMs();
      Map<RMApp, Collection<RMContainer>> held = held();
      Map<String, RMContainer> members = new HashMap<>();
      held.forEach((app, all) -> all.stream().filter(one -> !isMaster(app, one))
          .forEach(one -> members.put(one.getContainerId().toString(), one)));
      boolean settling = marked.keySet().retainAll(members.keySet());
      apply(answered.getAndSet(null), members, now);
      killOverdue(members, now);
      // The nodes may not know yet what was given back a moment ago: it would be missed, and more be taken.
      if (settling) return;
      String text = describe(held, now);
      caller.execute(() -> ask(text));
    } catch (RuntimeException | IOException error) {
      complain("a round failed", error);
    }
  }

  // ---- what the plan says, done
  private void apply(Map<String, List<String>> plan, Map<String, RMContainer> members, long now) {
    if (plan == null || !instance.equals(plan.get("at").get(0))) return;
    long takenMs = Long.parseLong(plan.get("at").get(1));
    if (takenMs > now || now - takenMs > maxAgeMs || takenMs < changedMs) return;
    heardMs = takenMs;
    marked.keySet().removeAll(plan.get("spare"));
    List<String> done = new ArrayList<>();
    for (String id : plan.get("take")) {
      // What has ended meanwhile is not in members, and neither is a job master's container, or another program's.
      if (members.containsKey(id) && marked.putIfAbsent(id, now) == null) {
        send(members.get(id), SchedulerEventType.MARK_CONTAINER_FOR_PREEMPTION);
        done.add(id);
      }
    }
    if (!done.isEmpty()) changedMs = now;
    if (!done.isEmpty()) LOG.info("H-scheduler takes back {}: {}", done, String.join("; ", plan.get("say")));
  }

  /** Kills what was marked and not given back in time, while H-scheduler still answers and does not spare it. */
  private void killOverdue(Map<String, RMContainer> members, long now) {
    if (heardMs < 0 || now - heardMs > maxAgeMs) return;
    for (Map.Entry<String, Long> entry : marked.entrySet()) {
      if (now - entry.getValue() >= graceMs) {
        LOG.info("H-scheduler: {} was not given back within {} ms: it is killed", entry.getKey(), graceMs);
        send(members.get(entry.getKey()), SchedulerEventType.MARK_CONTAINER_FOR_KILLABLE);
        entry.setValue(now);
      }
    }
  }

  @SuppressWarnings({"unchecked", "rawtypes"})
  private void send(RMContainer container, SchedulerEventType what) {
    org.apache.hadoop.yarn.event.EventHandler handler = context.getDispatcher().getEventHandler();
    handler.handle(new ContainerPreemptEvent(container.getApplicationAttemptId(), container, what));
  }

  // ---- what there is, as text
  /** Returns what applications hold, of all those that H-scheduler may see and take from. */
  private Map<RMApp, Collection<RMContainer>> held() {
    Map<RMApp, Collection<RMContainer>> held = new HashMap<>();
    for (RMApp app : context.getRMApps().values()) {
      RMAppAttempt attempt = app.getCurrentAppAttempt();
      if (!isServed(app) || app.isAppInCompletedStates() || attempt == null) continue;
      SchedulerAppReport report = scheduler.getSchedulerAppInfo(attempt.getAppAttemptId());
      held.put(app, report == null ? Collections.emptyList() : report.getLiveContainers());
    }
    return held;
  }

  /** A queue that is named stands for those below it, too; it goes by its path or its own name. */
  private boolean isServed(RMApp app) {
    if (!type.equals(app.getApplicationType()) || !(users.isEmpty() || users.contains(app.getUser()))) return false;
    CSQueue queue = queue(app.getQueue());
    String path = "." + (queue == null ? app.getQueue() : queue.getQueuePath()) + ".";
    return queues.stream().anyMatch(name -> path.contains("." + name + "."));
  }

  private CSQueue queue(String name) {
    return scheduler instanceof CapacityScheduler ? ((CapacityScheduler) scheduler).getQueue(name) : null;
  }

  private static boolean isMaster(RMApp app, RMContainer container) {
    Container master = app.getCurrentAppAttempt().getMasterContainer();
    return container.isAMContainer() || (master != null && master.getId().equals(container.getContainerId()));
  }

  /**
   * The scheduler goes on meanwhile, so what is held was read first, then what is free, last what is waited for.  What
   * moves in between is at most counted as free twice; otherwise it could count nowhere, and too much would be taken.
   */
  private String describe(Map<RMApp, Collection<RMContainer>> held, long now) throws IOException {
    StringBuilder text = new StringBuilder();
    line(text, "hscheduler-yarn", 3, instance, now, scheduler.getSchedulingResourceTypes().toString().contains("CPU"));
    for (RMApp app : held.keySet()) describe(app, held.get(app), text);
    Set<String> partitions = new TreeSet<>();
    for (RMNode node : context.getRMNodes().values()) {
      SchedulerNodeReport report = scheduler.getNodeReport(node.getNodeID());
      if (node.getState() != NodeState.RUNNING || report == null) continue;
      String partition = node.getNodeLabels() == null ? "" : String.join(",", node.getNodeLabels());
      partitions.add(partition);
      Resource free = report.getAvailableResource();
      line(text, "node", node.getNodeID(), partition, free.getMemorySize(), free.getVirtualCores());
    }
    Set<String> queues = held.keySet().stream().map(RMApp::getQueue).collect(Collectors.toSet());
    for (String queue : queues) describe(queue, partitions, text);
    for (RMApp app : held.keySet()) describeAsks(app, text);
    return text.append("end\n").toString();
  }

  private void describe(RMApp app, Collection<RMContainer> containers, StringBuilder text) throws IOException {
    RMAppAttempt attempt = app.getCurrentAppAttempt();
    Object id = app.getApplicationId();
    line(text, "app", id, app.getName(), app.createApplicationState(), app.getQueue(), app.getUser(),
        app.getApplicationPriority() == null ? 0 : app.getApplicationPriority().getPriority(), app.getSubmitTime(),
        String.join(",", app.getApplicationTags()), attempt.getHost(), attempt.getRpcPort(), attempt.getDiagnostics());
    for (RMContainer held : containers) {
      Resource size = held.getAllocatedResource();
      String name = held.getContainerId().toString();
      line(text, "container", id, name, held.getAllocatedNode(), size.getMemorySize(), size.getVirtualCores(),
          isMaster(app, held), System.currentTimeMillis() - held.getCreationTime(), marked.containsKey(name));
    }
  }

  private void describeAsks(RMApp app, StringBuilder text) throws IOException {
    RMAppAttempt attempt = app.getCurrentAppAttempt();
    boolean first = !app.getApplicationSubmissionContext().getUnmanagedAM() && attempt.getMasterContainer() == null;
    // A master that was granted a moment ago, and is not yet noted as the attempt's, is not among them.
    List<ResourceRequest> asks = scheduler.getPendingResourceRequestsForAttempt(attempt.getAppAttemptId());
    if (asks == null) return;
    for (ResourceRequest ask : asks) {
      if (!ResourceRequest.ANY.equals(ask.getResourceName()) || ask.getNumContainers() <= 0) continue;
      Resource size = ask.getCapability();
      line(text, "ask", app.getApplicationId(), first ? "master" : "member", ask.getNumContainers(),
          size.getMemorySize(), size.getVirtualCores(), ask.getNodeLabelExpression());
    }
  }

  private void describe(String name, Set<String> partitions, StringBuilder text) throws IOException {
    CSQueue queue = queue(name);
    // So for every kind of leaf, one that YARN made by itself as well: LeafQueue is not a class above all of them.
    if (queue == null || !(queue.getAbstractUsersManager() instanceof UsersManager)) return;
    UsersManager users = (UsersManager) queue.getAbstractUsersManager();
    float factor = users.getUserLimitFactor();
    for (String partition : partitions) {
      Resource used = queue.getQueueResourceUsage().getUsed(partition);
      Resource most = queue.getEffectiveMaxCapacity(partition);
      line(text, "queue", name, partition, used.getMemorySize(), used.getVirtualCores(), most.getMemorySize(),
          most.getVirtualCores(), queue.getPreemptionDisabled());
      Resource share = queue.getEffectiveCapacity(partition);
      for (UserInfo user : factor < 0 ? Collections.<UserInfo>emptyList() : users.getUsersInfo()) {
        UsersManager.User known = users.getUser(user.getUsername());
        if (known == null) continue;
        Resource has = known.getUsed(partition);
        line(text, "user", name, user.getUsername(), partition, has.getMemorySize(), has.getVirtualCores(),
            (long) (share.getMemorySize() * factor), (long) (share.getVirtualCores() * factor));
      }
    }
  }

  private static void line(StringBuilder text, Object... fields) throws IOException {
    for (int i = 0; i < fields.length; i++) {
      text.append(i == 0 ? "" : "\t").append(URLEncoder.encode(Objects.toString(fields[i], ""), "UTF-8"));
    }
    text.append("\n");
  }

  private void ask(String text) {
    try {
      answered.set(call.ask(text));
    } catch (IOException | GeneralSecurityException | RuntimeException error) {
      complain("no plan", error);
    }
  }

  /** Logs a failure, but at most one a minute. */
  private void complain(String what, Exception error) {
    if (nowMs() - complainedMs < QUIET_MS) return;
    complainedMs = nowMs();
    LOG.warn("H-scheduler: {}: {}; nothing is done", what, error.toString());
  }

  private static long nowMs() { return System.nanoTime() / 1_000_000; }
}
