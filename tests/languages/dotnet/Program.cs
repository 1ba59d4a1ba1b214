// Does with the SDK for .NET and an AMQP client what their users do, and compares what it was answered: `smoke [TOPIC …]`.
// The last line is JSON, the names of the steps that passed and of those that failed; lines before it tell what a failed one found.
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
