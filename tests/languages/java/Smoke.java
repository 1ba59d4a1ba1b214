// Commits a batch, reads the change feed, sends and receives by session, with the SDKs for Java.
import com.azure.core.util.IterableStream;
import com.azure.cosmos.CosmosClient;
import com.azure.cosmos.CosmosClientBuilder;
import com.azure.cosmos.CosmosContainer;
import com.azure.cosmos.models.CosmosBatch;
import com.azure.cosmos.models.CosmosBatchOperationResult;
import com.azure.cosmos.models.CosmosChangeFeedRequestOptions;
import com.azure.cosmos.models.FeedRange;
import com.azure.cosmos.models.FeedResponse;
import com.azure.cosmos.models.PartitionKey;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

public final class Smoke {
    private static List<Integer> batch(CosmosContainer container, String... ids) {
        CosmosBatch batch = CosmosBatch.createCosmosBatch(new PartitionKey("ada"));
        for (String id : ids) {
            batch.createItemOperation(Map.of("id", id, "partitionKey", "ada"));
        }
        return container.executeCosmosBatch(batch).getResults().stream()
            .map(CosmosBatchOperationResult::getStatusCode).toList();
    }

    private static void cosmos(Map<String, Object> out) {
        // Direct mode is a protocol of its own, which the emulator does not speak.
        try (CosmosClient client = new CosmosClientBuilder().endpoint(System.getenv("COSMOS_ENDPOINT"))
                .key(System.getenv("COSMOS_KEY")).gatewayMode().buildClient()) {
            client.createDatabaseIfNotExists("java");
            client.getDatabase("java").createContainerIfNotExists("data", "/partitionKey");
            CosmosContainer container = client.getDatabase("java").getContainer("data");
            out.put("committed", batch(container, "entity", "event"));
            out.put("refused", batch(container, "other", "event"));
            List<String> changes = new ArrayList<>();
            CosmosChangeFeedRequestOptions options =
                CosmosChangeFeedRequestOptions.createForProcessingFromBeginning(FeedRange.forFullRange());
            for (FeedResponse<JsonNode> page : container.queryChangeFeed(options, JsonNode.class).iterableByPage()) {
                page.getResults().forEach(item -> changes.add(item.get("id").asText()));
            }
            out.put("changes", changes);
        }
    }

    private static void serviceBus(Map<String, Object> out) {
        ServiceBusClientBuilder builder = new ServiceBusClientBuilder()
            .connectionString(System.getenv("SERVICEBUS_CONNECTION_STRING"))
            .customEndpointAddress("https://" + System.getenv("SERVICEBUS_ADDRESS"));
        List<String> received = new ArrayList<>();
        try (ServiceBusSenderClient sender = builder.sender().topicName("events").buildClient()) {
            for (String body : List.of("java 1", "java 2")) {
                sender.sendMessage(new ServiceBusMessage(body).setMessageId(body).setSessionId("java"));
            }
        }
        try (ServiceBusSessionReceiverClient sessions = builder.sessionReceiver().topicName("events")
                .subscriptionName("all").buildClient();
                ServiceBusReceiverClient receiver = sessions.acceptSession("java")) {
            while (received.size() < 2) {
                IterableStream<ServiceBusReceivedMessage> messages = receiver.receiveMessages(1);
                messages.forEach(message -> {
                    received.add(message.getSessionId() + ": " + message.getBody());
                    receiver.complete(message);
                });
            }
        }
        out.put("received", received);
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> out = new LinkedHashMap<>();
        cosmos(out);
        serviceBus(out);
        System.out.println(new ObjectMapper().writeValueAsString(out));
        System.exit(0); // the SDKs' threads end later
    }
}
