// Operations on a single item: their answers, conditions, patches, and expiry.
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class Points
{
    private static readonly PartitionKey Ada = new("ada");

    public static async Task Run(Steps steps)
    {
        var items = await Container("points");
        await Writes(steps, items);
        await Conditions(steps, items);
        await Patches(steps, items);

        await steps.Check("an item with a time to live is gone after it", "404/0", async () =>
        {
            await items.CreateItemAsync(new Item("short", "ada", 1, ttl: 60));
            await Advance(61);
            return await Refusal(() => items.ReadItemAsync<Item>("short", Ada));
        });
        await steps.Check("many items are read in one call, over ranges, without those that are missing", 20, async () =>
        {
            for (var number = 0; number < 20; number++) await items.CreateItemAsync(new Item("many", $"{number}", number));
            var asked = Enumerable.Range(0, 21).Select(number => ("many", new PartitionKey($"{number}"))).ToList();
            return (await items.ReadManyItemsAsync<Item>(asked)).Select(item => item.number).Distinct().Count();
        });
        await steps.Check("all items of a partition key go in one call", (200, "404/0"), async () =>
        {
            using var deleted = await items.DeleteAllItemsByPartitionKeyStreamAsync(new PartitionKey("3"));
            return ((int)deleted.StatusCode, await Refusal(() => items.ReadItemAsync<Item>("many", new("3"))));
        });
    }

    private static async Task Writes(Steps steps, Container items)
    {
        var first = new Item("first", "ada", 1, "Zoë € 😀 \"quoted\"");
        await steps.Check("a creation answers the item, an etag, a charge and a session", (first, "201", true, true, true).ToString(), async () =>
        {
            var answer = await items.CreateItemAsync(first, Ada);
            return (answer.Resource, $"{(int)answer.StatusCode}", answer.ETag != null, answer.RequestCharge > 0,
                answer.Headers.Session != null).ToString();
        });
        await steps.Check("an item is read as it was written", first, async () => (await items.ReadItemAsync<Item>("first", Ada)).Resource);
        await steps.Check("another key does not have it", "404/0", () => Refusal(() => items.ReadItemAsync<Item>("first", new("bob"))));
        await steps.Check("a creation of what is there", "409/0", () => Refusal(() => items.CreateItemAsync(first, Ada)));
        await steps.Check("an upsert creates, then replaces", [201, 200], async () =>
        {
            var item = new Item("upserted", "ada", 1);
            int[] found = [(int)(await items.UpsertItemAsync(item)).StatusCode, (int)(await items.UpsertItemAsync(item)).StatusCode];
            return found;
        });
        await steps.Check("a write without content answers an etag alone", (true, true), async () =>
        {
            var answer = await items.ReplaceItemAsync(first, "first", Ada, new() { EnableContentResponseOnWrite = false });
            return (answer.Resource is null, answer.ETag != null);
        });
        await steps.Check("a replacement of what is not there", "404/0", () => Refusal(() => items.ReplaceItemAsync(first with { id = "no" }, "no")));
        await steps.Check("a deletion, and another one", "204, then 404/0", async () =>
        {
            var deleted = await items.DeleteItemAsync<Item>("upserted", Ada);
            return $"{(int)deleted.StatusCode}, then {await Refusal(() => items.DeleteItemAsync<Item>("upserted", Ada))}";
        });
        await steps.Check("an id with what a URL escapes", "ä b+c&d=e%", async () =>
        {
            await items.CreateItemAsync(new Item("ä b+c&d=e%", "ada", 1));
            return (await items.ReadItemAsync<Item>("ä b+c&d=e%", Ada)).Resource.id;
        });
        await steps.Check("a stream answers a status and does not throw", [404, 200, 409], async () =>
        {
            using var missing = await items.ReadItemStreamAsync("missing", Ada);
            using var there = await items.ReadItemStreamAsync("first", Ada);
            using var again = await items.CreateItemStreamAsync(there.Content, Ada);
            return new[] { missing, there, again }.Select(answer => (int)answer.StatusCode).ToArray();
        });
    }

    private static async Task Conditions(Steps steps, Container items)
    {
        var item = new Item("conditions", "ada", 1);
        var old = (await items.CreateItemAsync(item)).ETag;
        var now = (await items.ReplaceItemAsync(item with { number = 2 }, item.id, Ada, new() { IfMatchEtag = old })).ETag;

        await steps.Check("each write changes the etag", true, async () => await Task.FromResult(old != now));
        await steps.Check("a replacement of an older version", "412/0",
            () => Refusal(() => items.ReplaceItemAsync(item, item.id, Ada, new() { IfMatchEtag = old })));
        await steps.Check("an upsert of an older version", "412/0",
            () => Refusal(() => items.UpsertItemAsync(item, Ada, new() { IfMatchEtag = old })));
        await steps.Check("a deletion of an older version", "412/0",
            () => Refusal(() => items.DeleteItemAsync<Item>(item.id, Ada, new() { IfMatchEtag = old })));
        await steps.Check("a read of what the reader has", "304/0",
            () => Refusal(() => items.ReadItemAsync<Item>(item.id, Ada, new() { IfNoneMatchEtag = now })));
        await steps.Check("a read of what changed since", 2,
            async () => (await items.ReadItemAsync<Item>(item.id, Ada, new() { IfNoneMatchEtag = old })).Resource.number);
    }

    private static async Task Patches(Steps steps, Container items)
    {
        await items.CreateItemAsync(new { id = "patched", partitionKey = "ada", number = 1, tags = new[] { "a", "c" }, old = "x", gone = 1 });
        Task<ItemResponse<Newtonsoft.Json.Linq.JObject>> Patch(string? condition, params PatchOperation[] operations) =>
            items.PatchItemAsync<Newtonsoft.Json.Linq.JObject>("patched", Ada, operations, new() { FilterPredicate = condition });

        await steps.Check("a patch adds, sets, replaces, removes, increments and moves",
            """{"id":"patched","partitionKey":"ada","number":4,"tags":["a","b","C"],"set":true,"moved":"x"}""",
            async () =>
            {
                var patched = await Patch("FROM c WHERE c.number = 1",
                    PatchOperation.Add("/tags/1", "b"),
                    PatchOperation.Set("/set", true),
                    PatchOperation.Replace("/tags/2", "C"),
                    PatchOperation.Remove("/gone"),
                    PatchOperation.Increment("/number", 3),
                    PatchOperation.Move("/old", "/moved"));
                var own = patched.Resource.Properties().Where(property => !property.Name.StartsWith('_'));
                return new Newtonsoft.Json.Linq.JObject(own).ToString(Newtonsoft.Json.Formatting.None);
            });
        await steps.Check("a patch whose condition is not met", "412/1110",
            () => Refusal(() => Patch("FROM c WHERE c.number = 1", PatchOperation.Increment("/number", 1))));
        await steps.Check("a patch of a path that is not there", "400/0", () => Refusal(() => Patch(null, PatchOperation.Replace("/none", 1))));
        await steps.Check("a patch of eleven operations", "400/0",
            () => Refusal(() => Patch(null, [.. Enumerable.Range(0, 11).Select(number => PatchOperation.Set($"/{number}", number))])));
        await steps.Check("a patch of the id", "400/0", () => Refusal(() => Patch(null, PatchOperation.Set("/id", "other"))));
        await steps.Check("what a refused patch leaves", 4,
            async () => (int)(await items.ReadItemAsync<Newtonsoft.Json.Linq.JObject>("patched", Ada)).Resource["number"]!);
    }
}
