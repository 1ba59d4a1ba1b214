// Partition keys of three levels: reads with the whole key, queries with its first levels, and values that are not strings.
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class HierarchicalKeys
{
    private static Container data = null!;

    public static async Task Run(Steps steps)
    {
        data = await Container("hierarchical", 3, "/tenant", "/user", "/session");
        foreach (var tenant in new[] { "acme", "bits" })
            foreach (var user in new[] { "ada", "bob" })
                for (var session = 0; session < 5; session++) await data.CreateItemAsync(new Visit("v", tenant, user, session));

        await steps.Check("an item by its key", new Visit("v", "acme", "bob", 3),
            async () => (await data.ReadItemAsync<Visit>("v", Key("acme", "bob", 3))).Resource);
        await steps.Check("an item by the key of another one", "404/0", () => Refusal(() => data.ReadItemAsync<Visit>("v", Key("acme", "bob", 9))));
        await steps.Check("an item by a part of its key", "400/1001", () => Refusal(() => data.ReadItemAsync<Visit>("v", Key("acme", "bob"))));
        await steps.Check("a query by two levels", 5, () => Count(Key("acme", "bob")));
        await steps.Check("a query by one level", 10, () => Count(Key("acme")));
        await steps.Check("a query by a level that is filtered", 10, () => Count(null, "SELECT VALUE COUNT(1) FROM c WHERE c.user = 'ada'"));
        await steps.Check("a batch", [200, 201, 200], async () =>
        {
            using var answer = await data.CreateTransactionalBatch(Key("acme", "ada", 1))
                .CreateItem(new Visit("w", "acme", "ada", 1)).PatchItem("v", [PatchOperation.Set("/seen", true)]).ExecuteAsync();
            return new[] { (int)answer.StatusCode }.Concat(answer.Select(one => (int)one.StatusCode)).ToArray();
        });
        await steps.Check("a key with true and null", true, async () =>
        {
            var key = new PartitionKeyBuilder().Add("acme").Add(true).AddNullValue().Build();
            await data.CreateItemAsync(new { id = "n", tenant = "acme", user = true, session = (int?)null }, key);
            return (await data.ReadItemStreamAsync("n", key)).IsSuccessStatusCode;
        });
        await steps.Check("after a split, a query by one level has all", 12, async () =>
        {
            await Split(data, "0");
            await Split(data, "1");
            await Split(data, "2");
            return await Count(Key("acme"));
        });
        await steps.Check("a deletion", "404/0", async () =>
        {
            await data.DeleteItemAsync<Visit>("v", Key("bits", "bob", 4));
            return await Refusal(() => data.ReadItemAsync<Visit>("v", Key("bits", "bob", 4)));
        });
    }

    private static PartitionKey Key(string tenant, string? user = null, int? session = null)
    {
        var key = new PartitionKeyBuilder().Add(tenant);
        if (user != null) key.Add(user);
        if (session != null) key.Add(session.Value);
        return key.Build();
    }

    private static async Task<int> Count(PartitionKey? key, string text = "SELECT VALUE COUNT(1) FROM c")
    {
        using var rows = data.GetItemQueryIterator<int>(text, requestOptions: new() { PartitionKey = key });
        var sum = 0;
        while (rows.HasMoreResults) sum += (await rows.ReadNextAsync()).Sum();
        return sum;
    }

    private sealed record Visit(string id, string tenant, string user, int session);
}
