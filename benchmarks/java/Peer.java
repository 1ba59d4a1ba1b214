import com.azure.cosmos.ChangeFeedProcessor;
import com.azure.cosmos.ChangeFeedProcessorBuilder;
import com.azure.cosmos.CosmosAsyncClient;
import com.azure.cosmos.CosmosAsyncDatabase;
import com.azure.cosmos.CosmosClientBuilder;
import com.azure.cosmos.models.ChangeFeedProcessorOptions;
import com.fasterxml.jackson.databind.JsonNode;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.List;
import java.util.Locale;

/**
 * The change feed processor of the Java SDK, with a handler that does nothing.
 *
 * <p>Arguments: endpoint, key, database, data container, lease container, name of the worker, page size, documents (0: until it
 * is killed), then the acquire, renew, expiration and poll intervals in milliseconds. It prints "ready", waits for a line, and
 * prints the documents a second, and a CPU second, after the first page.
 */
public class Peer {
    private static long began, cpuBegan, seen, first;

    public static void main(String[] given) throws Exception {
        CosmosAsyncClient client =
                new CosmosClientBuilder()
                        .endpoint(given[0])
                        .key(given[1])
                        .gatewayMode()
                        .endpointDiscoveryEnabled(false)
                        .contentResponseOnWriteEnabled(true)
                        .buildAsyncClient();
        CosmosAsyncDatabase database = client.getDatabase(given[2]);
        long wanted = Long.parseLong(given[7]);
        ChangeFeedProcessorOptions options =
                new ChangeFeedProcessorOptions()
                        .setStartFromBeginning(true)
                        .setMaxItemCount(Integer.parseInt(given[6]))
                        .setLeaseAcquireInterval(millis(given[8]))
                        .setLeaseRenewInterval(millis(given[9]))
                        .setLeaseExpirationInterval(millis(given[10]))
                        .setFeedPollDelay(millis(given[11]));
        ChangeFeedProcessor processor =
                new ChangeFeedProcessorBuilder()
                        .hostName(given[5])
                        .feedContainer(database.getContainer(given[3]))
                        .leaseContainer(database.getContainer(given[4]))
                        .options(options)
                        .handleChanges((List<JsonNode> page) -> note(page.size(), wanted))
                        .buildChangeFeedProcessor();
        System.out.println("ready");
        System.in.read();
        processor.start().block();
        Thread.sleep(Long.MAX_VALUE);
    }

    private static synchronized void note(int documents, long wanted) {
        if (began == 0) {
            began = System.nanoTime();
            cpuBegan = cpu();
            first = documents;
        }
        seen += documents;
        if (wanted > 0 && seen >= wanted) {
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpuSeconds = (cpu() - cpuBegan) / 1e9;
            System.out.printf(
                    Locale.ROOT, "[%.1f, %.1f]%n", (seen - first) / seconds, (seen - first) / cpuSeconds);
            System.exit(0);
        }
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static Duration millis(String text) {
        return Duration.ofMillis(Long.parseLong(text));
    }
}
