// Commits a batch, reads the change feed, sends and receives by session, with the SDKs for JavaScript; reads what the library sent.
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
  const received = await receive(client, "js", 2, {}, (message) => `${message.sessionId}: ${message.body}`);
  // It would parse a body of JSON.
  const ours = await receive(client, "js-ours", 4, { skipParsingBodyAsJson: true }, (message) => ({
    id: message.messageId,
    session: message.sessionId,
    subject: message.subject,
    contentType: message.contentType,
    properties: Object.fromEntries(
      Object.entries(message.applicationProperties ?? {}).map(([name, value]) => [name, [typeof value, value]]),
    ),
    body: message.body.toString("utf8"),
  }));
  await client.close();
  return { received, ours };
}

async function receive(client, session, count, options, read) {
  const receiver = await client.acceptSession("events", "all", session, options);
  const received = [];
  while (received.length < count) {
    for (const message of await receiver.receiveMessages(count - received.length)) {
      received.push(read(message));
      await receiver.completeMessage(message);
    }
  }
  await receiver.close();
  return received;
}

console.log(JSON.stringify({ ...(await cosmos()), ...(await serviceBus()) }));
