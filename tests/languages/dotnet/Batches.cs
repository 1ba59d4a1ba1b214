// Transactional batches, which this SDK encodes in a binary format: each kind of operation, conditions, limits, and failed batches.
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class Batches
{
    private static Container data = null!;

    public static async Task Run(Steps steps)
    {
        data = await Container("batches");
        await EachKind(steps);
        await Conditions(steps);
        await Limits(steps);
    }

    private static TransactionalBatch Batch(string key) => data.CreateTransactionalBatch(new PartitionKey(key));

    // Return the status of the batch, followed by the status of each operation.
    private static int[] Statuses(TransactionalBatchResponse answer) =>
        [(int)answer.StatusCode, .. answer.Select(one => (int)one.StatusCode)];

    private static async Task EachKind(Steps steps)
    {
        using var answer = await Batch("ada")
            .CreateItem(new Item("1", "ada", 1))
            .ReadItem("1")
            .ReplaceItem("1", new Item("1", "ada", 2))
            .UpsertItem(new Item("2", "ada", 5, ttl: 60))
            .PatchItem("1", [PatchOperation.Increment("/number", 3)], new() { FilterPredicate = "from c where c.number = 2" })
            .CreateItem(new Item("3", "ada", 0), new() { EnableContentResponseOnWrite = false })
            .DeleteItem("3")
            .ExecuteAsync();
        Task Found<T>(string name, T expected, Func<T> find) => steps.Check(name, expected, () => Task.FromResult(find()));

        await Found("each kind of operation", [200, 201, 200, 200, 201, 200, 201, 204], () => Statuses(answer));
        await Found("each answers its item", [1, 1, 2, 5, 5],
            () => Enumerable.Range(0, 5).Select(index => answer.GetOperationResultAtIndex<Item>(index).Resource.number).ToArray());
        await Found("each but a deletion has an etag", 6, () => answer.Count(one => one.ETag != null));
        await Found("one without content has none", true, () => answer[5].ResourceStream == null);
        await Found("the batch has a charge", true, () => answer.RequestCharge > 0);
        await Found("the batch has a session", true, () => answer.Headers.Session != null);
    }

    private static async Task Conditions(Steps steps)
    {
        var stored = (await data.CreateItemAsync(new Item("c", "bob", 1))).ETag;
        var current = "";
        await steps.Check("an operation on the version that is there", [200, 200], async () =>
        {
            using var replaced = await Batch("bob").ReplaceItem("c", new Item("c", "bob", 2), new() { IfMatchEtag = stored }).ExecuteAsync();
            current = replaced[0].ETag;
            return Statuses(replaced);
        });
        await steps.Check("an operation on an older version", [412, 424, 412], async () =>
        {
            using var stale = await Batch("bob")
                .CreateItem(new Item("d", "bob", 1)).DeleteItem("c", new() { IfMatchEtag = stored }).ExecuteAsync();
            return Statuses(stale);
        });
        await steps.Check("a patch whose condition is not met", [412, 412], async () =>
        {
            using var unmet = await Batch("bob")
                .PatchItem("c", [PatchOperation.Set("/number", 9)], new() { FilterPredicate = "from c where c.number = 1" }).ExecuteAsync();
            return Statuses(unmet);
        });
        await steps.Check("a read of what the reader has", [207, 304], async () =>
        {
            using var unchanged = await Batch("bob").ReadItem("c", new() { IfNoneMatchEtag = current }).ExecuteAsync();
            return Statuses(unchanged);
        });
        await steps.Check("a creation of what is there", [409, 424, 409], async () =>
        {
            using var there = await Batch("bob").CreateItem(new Item("d", "bob", 1)).CreateItem(new Item("c", "bob", 1)).ExecuteAsync();
            return Statuses(there);
        });
        await steps.Check("a batch that failed stored nothing", "404/0", () => Refusal(() => data.ReadItemAsync<Item>("d", new("bob"))));
    }

    private static async Task Limits(Steps steps)
    {
        await steps.Check("a hundred operations", 200, async () =>
        {
            var hundred = Batch("cai");
            for (var number = 0; number < 100; number++) hundred.CreateItem(new Item($"{number}", "cai", number));
            using var full = await hundred.ExecuteAsync();
            return (int)full.StatusCode;
        });
        foreach (var (size, status) in new[] { (2_000_000, 200), (2_100_000, 413) })
        {
            await steps.Check($"a batch of {size} bytes", status, async () =>
            {
                using var large = await Batch("cai").CreateItem(new Item($"{size}", "cai", 1, new string('x', size))).ExecuteAsync();
                return (int)large.StatusCode;
            });
        }
    }
}
