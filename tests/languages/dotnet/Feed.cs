// The pull model of the change feed: starting points, contents, continuations and splits. Also that the mode "all versions and deletes" is
// refused if it is not enabled.
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class Feed
{
    private static Container data = null!;

    public static async Task Run(Steps steps)
    {
        data = await Container("feed");
        await Write(0, 30);
        var now = data.GetChangeFeedIterator<Item>(ChangeFeedStartFrom.Now(), ChangeFeedMode.LatestVersion);
        await steps.Check("from now, nothing", 0, async () => (await Read(now)).Numbers.Count);
        var later = await Advance(5);
        await Advance(5);

        await steps.Check("from the beginning, all", (Numbers(0, 30), true), async () =>
        {
            var (numbers, pages) = await Read(Iterator(ChangeFeedStartFrom.Beginning(), pageSize: 4));
            return (Sorted(numbers), pages > 7);
        });
        var token = await After(ChangeFeedStartFrom.Beginning());
        await Write(30, 10);
        await data.UpsertItemAsync(new Item("item", "3", 103));
        await data.UpsertItemAsync(new Item("item", "3", 203));

        await steps.Check("what came since now, each item in its last version", [.. Numbers(30, 10), 203],
            async () => Sorted((await Read(now)).Numbers));
        await steps.Check("from a time", [.. Numbers(30, 10), 203],
            async () => Sorted((await Read(Iterator(ChangeFeedStartFrom.Time(later)))).Numbers));
        await steps.Check("from where another client was", [.. Numbers(30, 10), 203], async () =>
        {
            using var client = Connect();
            return Sorted((await Read(Iterator(ChangeFeedStartFrom.ContinuationToken(token), client))).Numbers);
        });
        await steps.Check("of one key, in order, to the 304 that has no documents", [1, 2, 203], async () =>
        {
            foreach (var number in new[] { 1, 2 }) await data.CreateItemAsync(new Item($"{number}", "3", number));
            await data.UpsertItemAsync(new Item("item", "3", 203));
            var key = ChangeFeedStartFrom.Beginning(FeedRange.FromPartitionKey(new PartitionKey("3")));
            return (await Read(Iterator(key))).Numbers.ToArray();
        });
        await steps.Check("of each range, together all", (3, 42), async () =>
        {
            var ranges = await data.GetFeedRangesAsync();
            var read = await Task.WhenAll(ranges.Select(range => Read(Iterator(ChangeFeedStartFrom.Beginning(range)))));
            return (ranges.Count, read.Sum(one => one.Numbers.Count));
        });
        await steps.Check("a range that was split meanwhile, by its children", Numbers(50, 20), async () =>
        {
            var before = await After(ChangeFeedStartFrom.Beginning());
            await Split(data, "1");
            await Write(50, 20);
            return Sorted((await Read(Iterator(ChangeFeedStartFrom.ContinuationToken(before)))).Numbers);
        });
        await steps.Check("a deletion is not in it", 0, async () =>
        {
            var before = await After(ChangeFeedStartFrom.Beginning());
            await data.DeleteItemAsync<Item>("item", new("5"));
            return (await Read(Iterator(ChangeFeedStartFrom.ContinuationToken(before)))).Numbers.Count;
        });
        await steps.Check("all versions, on an account that has them off", "400, says how: True", async () =>
        {
            using var versions = data.GetChangeFeedIterator<ChangeFeedItem<Item>>(ChangeFeedStartFrom.Now(), ChangeFeedMode.AllVersionsAndDeletes);
            try { await versions.ReadNextAsync(); }
            catch (CosmosException refused)
            {
                return $"{(int)refused.StatusCode}, says how: {refused.Message.Contains("'All Versions and Deletes' must be enabled")}";
            }
            return "not refused";
        });
    }

    private static async Task Write(int first, int count)
    {
        foreach (var number in Numbers(first, count)) await data.CreateItemAsync(new Item("item", $"{number}", number));
    }

    private static int[] Numbers(int first, int count) => [.. Enumerable.Range(first, count)];

    private static int[] Sorted(IEnumerable<int> numbers) => [.. numbers.Order()];

    private static FeedIterator<Item> Iterator(ChangeFeedStartFrom start, CosmosClient? client = null, int? pageSize = null) =>
        (client?.GetContainer(DatabaseId, "feed") ?? data)
        .GetChangeFeedIterator<Item>(start, ChangeFeedMode.LatestVersion, new() { PageSizeHint = pageSize });

    private static async Task<(List<int> Numbers, int Pages)> Read(FeedIterator<Item> feed)
    {
        var (numbers, pages) = (new List<int>(), 0);
        await ToTheEnd(feed, page =>
        {
            numbers.AddRange(page.Select(item => item.number));
            pages++;
        });
        return (numbers, pages);
    }

    private static async Task<string> After(ChangeFeedStartFrom start)
    {
        using var feed = Iterator(start);
        return (await ToTheEnd(feed, _ => { })).ContinuationToken;
    }

    // Read until a range answers 304, and return this answer.
    private static async Task<FeedResponse<Item>> ToTheEnd(FeedIterator<Item> feed, Action<FeedResponse<Item>> take)
    {
        for (var pages = 0; pages < 1_000; pages++)
        {
            var page = await feed.ReadNextAsync();
            if (page.StatusCode == System.Net.HttpStatusCode.NotModified) return page;
            take(page);
        }
        throw new InvalidOperationException("a thousand pages have no end");
    }
}
