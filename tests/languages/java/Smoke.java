// Do what test_languages.py expects of the program for each language, with the Azure SDKs for Java.
import com.azure.cosmos.CosmosClient;
import com.azure.cosmos.CosmosClientBuilder;
import com.azure.cosmos.CosmosContainer;
import com.azure.cosmos.CosmosDatabase;
import com.azure.cosmos.models.CosmosBatch;
import com.azure.cosmos.models.CosmosBatchOperationResult;
import com.azure.cosmos.models.CosmosChangeFeedRequestOptions;
import com.azure.cosmos.models.CosmosContainerProperties;
import com.azure.cosmos.models.CosmosQueryRequestOptions;
import com.azure.cosmos.models.FeedRange;
import com.azure.cosmos.models.FeedResponse;
import com.azure.cosmos.models.PartitionKey;
import com.azure.cosmos.models.PartitionKeyBuilder;
import com.azure.cosmos.models.PartitionKeyDefinition;
import com.azure.cosmos.models.PartitionKeyDefinitionVersion;
import com.azure.cosmos.models.PartitionKind;
import com.azure.cosmos.models.ThroughputProperties;
import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.URL;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

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
        // Use gateway mode, because the emulator does not support the protocol of direct mode.
        try (CosmosClient client = new CosmosClientBuilder().endpoint(System.getenv("COSMOS_ENDPOINT"))
                .key(System.getenv("COSMOS_KEY")).gatewayMode().buildClient()) {
            client.createDatabaseIfNotExists("java");
            CosmosDatabase database = client.getDatabase("java");
            database.createContainerIfNotExists("data", "/partitionKey");
            CosmosContainer container = database.getContainer("data");
            out.put("committed", batch(container, "entity", "event"));
            out.put("refused", batch(container, "other", "event"));
            List<String> changes = new ArrayList<>();
            CosmosChangeFeedRequestOptions options =
                CosmosChangeFeedRequestOptions.createForProcessingFromBeginning(FeedRange.forFullRange());
            for (FeedResponse<JsonNode> page : container.queryChangeFeed(options, JsonNode.class).iterableByPage()) {
                page.getResults().forEach(item -> changes.add(item.get("id").asText()));
            }
            out.put("changes", changes);
            database.createContainer("ordered", "/partitionKey", ThroughputProperties.createManualThroughput(18_000));
            CosmosContainer ordered = database.getContainer("ordered");
            out.put("throughput", replaceThroughput(ordered));
            out.put("pages", readPages(ordered));
            out.put("hierarchical", readHierarchical(database));
        }
    }

    private static List<Integer> replaceThroughput(CosmosContainer container) {
        int before = container.readThroughput().getProperties().getManualThroughput();
        container.replaceThroughput(ThroughputProperties.createManualThroughput(12_000));
        return List.of(before, container.readThroughput().getProperties().getManualThroughput());
    }

    private static Map<String, Object> readPages(CosmosContainer container) {
        for (int number = 0; number < 10; number++) {
            for (String key : List.of("ada", "other " + number)) {
                container.createItem(Map.of("id", String.valueOf(number), "partitionKey", key, "number", number));
            }
        }
        String ordered = "SELECT c.number FROM c WHERE c.partitionKey %s 'ada' ORDER BY c.number";
        CosmosQueryRequestOptions anywhere = new CosmosQueryRequestOptions();
        CosmosQueryRequestOptions ada = new CosmosQueryRequestOptions().setPartitionKey(new PartitionKey("ada"));
        List<Object> across = new ArrayList<>();
        List<List<Integer>> pages = read(container, String.format(ordered, "!="), anywhere);
        across.add(pages.size() > 1);
        pages.forEach(across::addAll);
        return Map.of(
            "across", across,
            "filter", read(container, String.format(ordered, "="), anywhere),
            "key", read(container, String.format(ordered, "="), ada));
    }

    // Read each page with a new query that has only the continuation of the page before.
    private static List<List<Integer>> read(CosmosContainer container, String query, CosmosQueryRequestOptions options) {
        List<List<Integer>> pages = new ArrayList<>();
        String continuation = null;
        do {
            FeedResponse<JsonNode> page = container.queryItems(query, options, JsonNode.class)
                .iterableByPage(continuation, 5).iterator().next();
            pages.add(page.getResults().stream().map(item -> item.get("number").asInt()).toList());
            continuation = page.getContinuationToken();
        } while (continuation != null);
        return pages;
    }

    private static String readHierarchical(CosmosDatabase database) {
        PartitionKeyDefinition definition = new PartitionKeyDefinition().setPaths(List.of("/tenant", "/user"))
            .setKind(PartitionKind.MULTI_HASH).setVersion(PartitionKeyDefinitionVersion.V2);
        database.createContainer(new CosmosContainerProperties("hierarchical", definition));
        CosmosContainer container = database.getContainer("hierarchical");
        for (String user : List.of("ada", "bob")) {
            container.createItem(Map.of("id", "1", "tenant", "acme", "user", user));
        }
        PartitionKey key = new PartitionKeyBuilder().add("acme").add("bob").build();
        return container.readItem("1", key, JsonNode.class).getItem().get("user").asText();
    }

    private static void serviceBus(Map<String, Object> out) {
        ServiceBusClientBuilder builder = connect("SERVICEBUS_CONNECTION_STRING");
        for (String body : List.of("java 1", "java 2")) {
            send(builder, "java", body);
        }
        out.put("received", receive(builder, "java", 2).stream()
            .map(message -> message.getSessionId() + ": " + message.getBody()).toList());
        out.put("ours", receive(builder, "java-ours", 4).stream().map(Smoke::read).toList());
        out.put("deferred", receiveDeferred(builder));
        out.put("administered", administer());
        send(connect("SERVICEBUS_SIGNED"), "java-signed", "signed");
        out.put("signed", receive(builder, "java-signed", 1).get(0).getBody().toString());
        out.put("expired", refusal(connect("SERVICEBUS_EXPIRED")));
    }

    private static ServiceBusClientBuilder connect(String variable) {
        return new ServiceBusClientBuilder().connectionString(System.getenv(variable))
            .retryOptions(new AmqpRetryOptions().setMaxRetries(0))
            .customEndpointAddress("https://" + System.getenv("SERVICEBUS_ADDRESS"));
    }

    private static void send(ServiceBusClientBuilder builder, String session, String body) {
        try (ServiceBusSenderClient sender = builder.sender().topicName("events").buildClient()) {
            sender.sendMessage(new ServiceBusMessage(body).setMessageId(body).setSessionId(session));
        }
    }

    private static String refusal(ServiceBusClientBuilder builder) {
        try {
            send(builder, "java-signed", "refused");
            return "sent";
        } catch (RuntimeException error) {
            Matcher told = Pattern.compile("ExpiredToken: .*?'.*?'").matcher(error.getMessage());
            return told.find() ? told.group() : error.getMessage();
        }
    }

    private static String receiveDeferred(ServiceBusClientBuilder builder) {
        send(builder, "java-deferred", "later");
        try (ServiceBusSessionReceiverClient sessions = builder.sessionReceiver().topicName("events")
                .subscriptionName("all").buildClient();
                ServiceBusReceiverClient receiver = sessions.acceptSession("java-deferred")) {
            ServiceBusReceivedMessage message = receiver.receiveMessages(1).iterator().next();
            receiver.defer(message);
            ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(message.getSequenceNumber());
            receiver.complete(deferred);
            return deferred.getBody().toString();
        }
    }

    private static List<Object> administer() {
        int port = URI.create("https://" + System.getenv("SERVICEBUS_ADDRESS")).getPort();
        // This client uses the host of the connection string, but always port 443. So this policy sets the port of each request.
        HttpPipelinePolicy atThePort = (context, next) -> {
            URL url = context.getHttpRequest().getUrl();
            try {
                context.getHttpRequest().setUrl(new URL("https", url.getHost(), port, url.getFile()));
            } catch (java.net.MalformedURLException error) {
                throw new IllegalStateException(error);
            }
            return next.process();
        };
        ServiceBusAdministrationClient client = new ServiceBusAdministrationClientBuilder()
            .connectionString(System.getenv("SERVICEBUS_CONNECTION_STRING")).addPolicy(atThePort).buildClient();
        client.createQueue("java", new CreateQueueOptions().setLockDuration(Duration.ofSeconds(30)));
        String lock = client.getQueue("java").getLockDuration().toString();
        int active = client.getQueueRuntimeProperties("java").getActiveMessageCount();
        boolean sessions = client.getSubscription("events", "all").isSessionRequired();
        client.deleteQueue("java");
        return List.of(lock, active, sessions, client.getQueueExists("java"));
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
        // Escape characters that are not ASCII, because the encoding of the output depends on the machine.
        ObjectMapper mapper = new ObjectMapper().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);
        System.out.println(mapper.writeValueAsString(out));
        System.exit(0); // the SDKs' threads end later
    }
}
