// Commits a batch, reads the change feed, sends and receives by session, with the SDKs for Java; reads what the library sent.
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
import com.fasterxml.jackson.core.JsonGenerator;
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
        try (ServiceBusSenderClient sender = builder.sender().topicName("events").buildClient()) {
            for (String body : List.of("java 1", "java 2")) {
                sender.sendMessage(new ServiceBusMessage(body).setMessageId(body).setSessionId("java"));
            }
        }
        out.put("received", receive(builder, "java", 2).stream()
            .map(message -> message.getSessionId() + ": " + message.getBody()).toList());
        out.put("ours", receive(builder, "java-ours", 4).stream().map(Smoke::read).toList());
    }

    private static List<ServiceBusReceivedMessage> receive(ServiceBusClientBuilder builder, String session, int count) {
        List<ServiceBusReceivedMessage> received = new ArrayList<>();
        try (ServiceBusSessionReceiverClient sessions = builder.sessionReceiver().topicName("events")
                .subscriptionName("all").buildClient();
                ServiceBusReceiverClient receiver = sessions.acceptSession(session)) {
            while (received.size() < count) {
                receiver.receiveMessages(1).forEach(message -> {
                    received.add(message);
                    receiver.complete(message);
                });
            }
        }
        return received;
    }

    private static Map<String, Object> read(ServiceBusReceivedMessage message) {
        Map<String, Object> properties = new LinkedHashMap<>();
        message.getApplicationProperties().forEach((name, value) ->
            properties.put(name, List.of(value.getClass().getSimpleName(), value)));
        Map<String, Object> read = new LinkedHashMap<>();
        read.put("id", message.getMessageId());
        read.put("session", message.getSessionId());
        read.put("subject", message.getSubject());
        read.put("contentType", message.getContentType());
        read.put("properties", properties);
        read.put("body", message.getBody().toString());
        return read;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> out = new LinkedHashMap<>();
        cosmos(out);
        serviceBus(out);
        // Its output has the encoding of the machine.
        ObjectMapper mapper = new ObjectMapper().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);
        System.out.println(mapper.writeValueAsString(out));
        System.exit(0); // the SDKs' threads end later
    }
}
