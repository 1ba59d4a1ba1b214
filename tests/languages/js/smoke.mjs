// Commits a batch, reads the change feed, sends and receives by session, with the SDKs for JavaScript.
import { ChangeFeedStartFrom, CosmosClient } from "@azure/cosmos";
import { ServiceBusClient } from "@azure/service-bus";

const { COSMOS_ENDPOINT, COSMOS_KEY, SERVICEBUS_CONNECTION_STRING } = process.env;

async function cosmos() {
  const client = new CosmosClient({ endpoint: COSMOS_ENDPOINT, key: COSMOS_KEY });
  const { database } = await client.databases.createIfNotExists({ id: "js" });
  const { container } = await database.containers.createIfNotExists({ id: "data", partitionKey: "/partitionKey" });
  const create = (id) => ({ operationType: "Create", resourceBody: { id, partitionKey: "ada" } });
  const committed = await container.items.batch([create("entity"), create("event")], "ada");
  const refused = await container.items.batch([create("other"), create("event")], "ada");
  const changes = [];
  const feed = container.items.getChangeFeedIterator({ changeFeedStartFrom: ChangeFeedStartFrom.Beginning() });
  while (feed.hasMoreResults) {
    const page = await feed.readNext();
    if (page.statusCode === 304) break;
    changes.push(...page.result.map((item) => item.id));
  }
  client.dispose();
  return {
    committed: committed.result.map((one) => one.statusCode),
    refused: refused.result.map((one) => one.statusCode),
    changes,
  };
}

async function serviceBus() {
  // It takes the port of the connection string, and TLS since nothing there says otherwise.
  const client = new ServiceBusClient(SERVICEBUS_CONNECTION_STRING);
  const sender = client.createSender("events");
  for (const body of ["js 1", "js 2"]) await sender.sendMessages({ body, messageId: body, sessionId: "js" });
  const receiver = await client.acceptSession("events", "all", "js");
  const received = [];
  while (received.length < 2) {
    for (const message of await receiver.receiveMessages(2)) {
      received.push(`${message.sessionId}: ${message.body}`);
      await receiver.completeMessage(message);
    }
  }
  await client.close();
  return { received };
}

console.log(JSON.stringify({ ...(await cosmos()), ...(await serviceBus()) }));
