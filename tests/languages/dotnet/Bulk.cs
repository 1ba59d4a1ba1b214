// Bulk mode: the SDK sends many operations in one request for each range, and sends throttled operations again.
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class Bulk
{
    public static async Task Run(Steps steps)
    {
        var data = await Container("bulk");
        using var client = Connect(options => options.AllowBulkExecution = true);
        var bulk = client.GetContainer(DatabaseId, "bulk");
        Item Numbered(int number) => new("bulk", $"{number}", number);

        await steps.Check("creations over three ranges: each tenth was there, two requests were throttled", ["201: 180", "409: 20"], async () =>
        {
            for (var number = 0; number < 200; number += 10) await data.CreateItemAsync(Numbered(number));
            await Fault(new { operation = "batch", status = 429, substatus = 3200, retry_after_ms = 10, count = 2 });
            return await Statuses(200, async number => (int)(await bulk.CreateItemAsync(Numbered(number))).StatusCode);
        });
        await steps.Check("each throttled request was asked for", 0, FaultsLeft);
        await steps.Check("each operation has a charge", ["1: 200"],
            () => Statuses(200, async number => (await bulk.ReadItemAsync<Item>("bulk", new($"{number}"))).RequestCharge > 0 ? 1 : 0));
        await steps.Check("patches, each with its condition", ["200: 100", "412: 100"], () => Statuses(200, async number =>
        {
            var condition = new PatchItemRequestOptions { FilterPredicate = "from c where c.number < 100" };
            PatchOperation[] increment = [PatchOperation.Increment("/number", 1000)];
            return (int)(await bulk.PatchItemAsync<Item>("bulk", new($"{number}"), increment, condition)).StatusCode;
        }));
        await steps.Check("deletions, and those of what is not there", ["204: 200", "404: 5"],
            () => Statuses(205, async number => (int)(await bulk.DeleteItemAsync<Item>("bulk", new($"{number}"))).StatusCode));
    }

    private static async Task<string[]> Statuses(int count, Func<int, Task<int>> operation)
    {
        var asked = Enumerable.Range(0, count).Select(async number =>
        {
            try { return await operation(number); }
            catch (CosmosException refused) { return (int)refused.StatusCode; }
        });
        return [.. (await Task.WhenAll(asked)).CountBy(status => status).OrderBy(one => one.Key).Select(one => $"{one.Key}: {one.Value}")];
    }
}
