// The change feed processor of the SDK for .NET, with a handler that does nothing.
//
// Arguments: endpoint, key, database, data container, lease container, name of the worker, page size, documents (0: until it
// is killed), then the acquire, renew, expiration and poll intervals in milliseconds. It prints "ready", waits for a line, and
// prints the documents a second, and a CPU second, after the first page.
using System.Diagnostics;
using System.Globalization;
using Microsoft.Azure.Cosmos;
using Newtonsoft.Json.Linq;

using var client = new CosmosClient(args[0], args[1], new() { ConnectionMode = ConnectionMode.Gateway, LimitToEndpoint = true });
var database = client.GetDatabase(args[2]);
var wanted = long.Parse(args[7]);
long seen = 0, first = 0, began = 0;
var cpuBegan = TimeSpan.Zero;
var guard = new Lock();
var processor = database.GetContainer(args[3])
    .GetChangeFeedProcessorBuilder<JObject>("bench", Note)
    .WithInstanceName(args[5])
    .WithLeaseContainer(database.GetContainer(args[4]))
    .WithMaxItems(int.Parse(args[6]))
    .WithStartTime(DateTime.MinValue.ToUniversalTime())
    .WithLeaseConfiguration(Milliseconds(8), Milliseconds(10), Milliseconds(9))
    .WithPollInterval(Milliseconds(11))
    .Build();
Console.WriteLine("ready");
Console.ReadLine();
await processor.StartAsync();
await Task.Delay(Timeout.Infinite);

TimeSpan Milliseconds(int index) => TimeSpan.FromMilliseconds(long.Parse(args[index]));

Task Note(IReadOnlyCollection<JObject> page, CancellationToken ended)
{
    lock (guard)
    {
        if (began == 0) (began, cpuBegan, first) = (Stopwatch.GetTimestamp(), Cpu(), page.Count);
        seen += page.Count;
        if (wanted > 0 && seen >= wanted)
        {
            var seconds = Stopwatch.GetElapsedTime(began).TotalSeconds;
            var cpuSeconds = (Cpu() - cpuBegan).TotalSeconds;
            Console.WriteLine(string.Create(CultureInfo.InvariantCulture, $"[{(seen - first) / seconds:F1}, {(seen - first) / cpuSeconds:F1}]"));
            Environment.Exit(0);
        }
    }
    return Task.CompletedTask;
}

static TimeSpan Cpu() => Process.GetCurrentProcess().TotalProcessorTime;
