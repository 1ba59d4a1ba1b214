// Use the Azure Cosmos DB SDK for .NET and an AMQP client as their users do, and compare the answers with the expected ones:
// `smoke [TOPIC …]`. The last line of the output is JSON with the names of the steps that passed and that failed. The lines before it say
// what the failed steps found.
using System.Text.Json;

Dictionary<string, Func<Steps, Task>> topics = new()
{
    ["tls"] = Tls.Run,
    ["points"] = Points.Run,
    ["batches"] = Batches.Run,
    ["bulk"] = Bulk.Run,
    ["queries"] = Queries.Run,
    ["keys"] = HierarchicalKeys.Run,
    ["feed"] = Feed.Run,
    ["processor"] = Processor.Run,
    ["throttling"] = Throttling.Run,
    ["messages"] = Messages.Run,
    ["reference"] = Reference.Run,
};

var steps = new Steps();
foreach (var topic in args.Length == 0 ? [.. topics.Keys] : args) await steps.About(topic, topics[topic]);
Console.WriteLine(JsonSerializer.Serialize(new { passed = steps.Passed, failed = steps.Failed }));
return steps.Failed.Count == 0 ? 0 : 1;
