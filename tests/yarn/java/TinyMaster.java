import java.nio.file.*;
import java.util.List;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.*;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/**
 * An application master that holds containers in which nothing runs: FOLDER COUNT MB.  It writes into the folder what
 * happens, a line for each container (held, preempted, completed), gives back what it is asked for unless there is a
 * file "stubborn", and ends when there is a file "stop".
 */
public final class TinyMaster {
  private static Path folder;

  public static void main(String[] args) throws Exception {
    folder = Paths.get(args[0]);
    AMRMClient<ContainerRequest> client = AMRMClient.createAMRMClient();
    client.init(new YarnConfiguration());
    client.start();
    client.registerApplicationMaster("127.0.0.1", -1, "");
    write("master", System.getenv("CONTAINER_ID"));
    for (int i = 0; i < Integer.parseInt(args[1]); i++) {
      Resource size = Resource.newInstance(Integer.parseInt(args[2]), 1);
      client.addContainerRequest(new ContainerRequest(size, null, null, Priority.newInstance(1)));
    }
    while (!Files.exists(folder.resolve("stop"))) {
      AllocateResponse news = client.allocate(0.5f);
      for (Container container : news.getAllocatedContainers()) {
        write("held", container.getId() + " " + container.getNodeId().getHost());
      }
      for (ContainerStatus status : news.getCompletedContainersStatuses()) {
        write("completed", status.getContainerId() + " " + status.getExitStatus());
      }
      PreemptionMessage message = news.getPreemptionMessage();
      if (message != null && message.getContract() != null) {
        for (PreemptionContainer container : message.getContract().getContainers()) {
          write("preempted", container.getId().toString());
          if (!Files.exists(folder.resolve("stubborn"))) {
            client.releaseAssignedContainer(container.getId());
          }
        }
      }
      Thread.sleep(100);
    }
    client.unregisterApplicationMaster(FinalApplicationStatus.SUCCEEDED, "", "");
    client.stop();
  }

  private static void write(String file, String line) throws Exception {
    Files.write(folder.resolve(file), List.of(line), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
  }
}
