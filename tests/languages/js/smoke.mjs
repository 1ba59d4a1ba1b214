// Do what test_languages.py expects of the program for each language, with the Azure SDKs for JavaScript.
import { ChangeFeedStartFrom, CosmosClient } from "@azure/cosmos";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

const { COSMOS_ENDPOINT, COSMOS_KEY, SERVICEBUS_CONNECTION_STRING, SERVICEBUS_SIGNED, SERVICEBUS_EXPIRED } = process.env;
const numbers = [...Array(10).keys()];

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
  const throughput = await replaceThroughput(database);
  const pages = await readPages(database);
  const hierarchical = await readHierarchical(database);
  client.dispose();
  return {
    committed: committed.result.map((one) => one.statusCode),
    refused: refused.result.map((one) => one.statusCode),
    changes,
    throughput,
    pages,
    hierarchical,
  };
}

async function replaceThroughput(database) {
  const { container } = await database.containers.create({ id: "ordered", partitionKey: "/partitionKey", throughput: 18000 });
  const { offer, resource } = await container.readOffer();
  await offer.replace({ ...resource, content: { offerThroughput: 12000 } });
  const { resource: replaced } = await offer.read();
  return [resource.content.offerThroughput, replaced.content.offerThroughput];
}

async function readPages(database) {
  const container = database.container("ordered");
  for (const number of numbers) {
    await container.items.create({ id: `${number}`, partitionKey: "ada", number });
    await container.items.create({ id: `${number}`, partitionKey: `other ${number}`, number });
  }
  const ordered = (filter) => `SELECT c.number FROM c WHERE c.partitionKey ${filter} ORDER BY c.number`;
  // Enable query control, because without it this SDK returns no continuation for an ordered query over several ranges. With it, pages
  // may be shorter than asked for.
  const across = await read(container, ordered("!= 'ada'"), { maxItemCount: 5, enableQueryControl: true });
  return {
    across: [across.length > 1, ...across.flat()],
    filter: await read(container, ordered("= 'ada'"), { maxItemCount: 5, enableQueryControl: true }),
    key: await read(container, ordered("= 'ada'"), { maxItemCount: 5, partitionKey: "ada" }),
  };
}

// Read each page with a new query that has only the continuation of the page before.
async function read(container, query, options) {
  const pages = [];
  let continuationToken;
  do {
    const page = await container.items.query(query, { ...options, continuationToken }).fetchNext();
    pages.push(page.resources.map((item) => item.number));
    ({ continuationToken } = page);
  } while (continuationToken);
  return pages;
}

async function readHierarchical(database) {
  const partitionKey = { paths: ["/tenant", "/user"], kind: "MultiHash", version: 2 };
  const { container } = await database.containers.create({ id: "hierarchical", partitionKey });
  for (const user of ["ada", "bob"]) await container.items.create({ id: "1", tenant: "acme", user });
  const { resource } = await container.item("1", ["acme", "bob"]).read();
  return resource.user;
}

async function serviceBus() {
  // This client uses the port of the connection string, and TLS because the connection string does not switch it off.
  const client = new ServiceBusClient(SERVICEBUS_CONNECTION_STRING);
  const sender = client.createSender("events");
  for (const body of ["js 1", "js 2"]) await sender.sendMessages({ body, messageId: body, sessionId: "js" });
  const received = await receive(client, "js", 2, {}, (message) => `${message.sessionId}: ${message.body}`);
  // Skip the parsing of the body, because the SDK would otherwise parse JSON.
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
  const deferred = await receiveDeferred(client, sender);
  await client.close();
  return { received, ours, deferred, administered: await administer(), ...(await sendSigned()) };
}

async function receiveDeferred(client, sender) {
  await sender.sendMessages({ body: "later", sessionId: "js-deferred" });
  const receiver = await client.acceptSession("events", "all", "js-deferred");
  const [message] = await receiver.receiveMessages(1);
  await receiver.deferMessage(message);
  const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  await receiver.completeMessage(deferred);
  await receiver.close();
  return deferred.body;
}

async function administer() {
  const client = new ServiceBusAdministrationClient(SERVICEBUS_CONNECTION_STRING);
  await client.createQueue("js", { lockDuration: "PT30S" });
  const { lockDuration } = await client.getQueue("js");
  const { activeMessageCount } = await client.getQueueRuntimeProperties("js");
  const { requiresSession } = await client.getSubscription("events", "all");
  await client.deleteQueue("js");
  return [lockDuration, activeMessageCount, requiresSession, await client.queueExists("js")];
}

async function sendSigned() {
  const send = async (connectionString) => {
    const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
    try {
      await client.createSender("events").sendMessages({ body: "signed", sessionId: "js-signed" });
    } finally {
      await client.close();
    }
  };
  await send(SERVICEBUS_SIGNED);
  const client = new ServiceBusClient(SERVICEBUS_CONNECTION_STRING);
  const [signed] = await receive(client, "js-signed", 1, {}, (message) => message.body);
  await client.close();
  const refusal = await send(SERVICEBUS_EXPIRED).catch((error) => error.message);
  return { signed, expired: refusal.match(/ExpiredToken: .*?'.*?'/)?.[0] ?? refusal };
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
