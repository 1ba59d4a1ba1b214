// Throttling (429): what the answer says, how often the SDK tries again, and which requests are refused first.
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class Throttling
{
    private static Container data = null!;

    public static async Task Run(Steps steps)
    {
        data = await Container("throttled", 1);
        using var impatient = Connect(options => options.MaxRetryAttemptsOnRateLimitedRequests = 0);
        var once = impatient.GetContainer(DatabaseId, "throttled");
        await data.CreateItemAsync(new Item("item", "ada", 1));
        await once.ReadItemAsync<Item>("item", new("ada"));

        object Three(string operation) => new { operation, status = 429, substatus = 3200, retry_after_ms = 10, count = 3 };
        await steps.Check("the SDK asks again", (201, 0), async () =>
        {
            await Fault(Three("create"));
            return ((int)(await data.CreateItemAsync(new Item("again", "ada", 1))).StatusCode, await FaultsLeft());
        });
        await steps.Check("a query asks again", (1, 0), async () =>
        {
            await Fault(Three("query"));
            using var rows = data.GetItemQueryIterator<int>("SELECT VALUE c.number FROM c WHERE c.id = 'item'");
            var found = 0;
            while (rows.HasMoreResults) found += (await rows.ReadNextAsync()).Sum();
            return (found, await FaultsLeft());
        });
        await steps.Check("a client that does not ask again is told when it may", "429/3200 after 10 ms, three times", async () =>
        {
            await Fault(Three("read"));
            HashSet<string> told = [];
            for (var attempt = 0; attempt < 3; attempt++)
            {
                try { await once.ReadItemAsync<Item>("item", new("ada")); }
                catch (CosmosException refused)
                {
                    told.Add($"{(int)refused.StatusCode}/{refused.SubStatusCode} after {refused.RetryAfter?.TotalMilliseconds} ms");
                }
            }
            return $"{string.Join(", ", told)}, {(await FaultsLeft() == 0 ? "three times" : "fewer times")}";
        });

        await Throttle(data, 200);
        await steps.Check("more than a second has is written in several", true, async () =>
        {
            var asked = Enumerable.Range(0, 50).Select(number => data.CreateItemAsync(new Item($"{number}", "bob", number)));
            return (await Task.WhenAll(asked)).All(answer => answer.StatusCode == System.Net.HttpStatusCode.Created);
        });
        await Advance(60); // what was spent too much is paid
        await Throttle(data, 5);
        await steps.Check("low priority is refused before high", ("429/3200", "not refused"), async () =>
        {
            var low = await UntilRefused(() => once.ReadItemAsync<Item>("item", new("ada"), new() { PriorityLevel = PriorityLevel.Low }));
            return (low, await Refusal(() => once.ReadItemAsync<Item>("item", new("ada"), new() { PriorityLevel = PriorityLevel.High })));
        });
        await Advance(60);
        await Throttle(data, 50, new Dictionary<string, int> { ["1"] = 10 });
        await steps.Check("a throughput bucket has its own limit", ("429/3212", "not refused"), async () =>
        {
            var bucket = await UntilRefused(() => once.ReadItemAsync<Item>("item", new("ada"), new() { ThroughputBucket = 1 }));
            return (bucket, await Refusal(() => once.ReadItemAsync<Item>("item", new("ada"))));
        });
        await Throttle(data, 0);
    }

    private static async Task<string> UntilRefused(Func<Task> ask)
    {
        for (var attempt = 0; attempt < 2_000; attempt++)
        {
            var refusal = await Refusal(ask);
            if (refusal != "not refused") return refusal;
        }
        return "not refused";
    }
}
