// Queries over three ranges: ORDER BY, OFFSET and LIMIT, aggregates, parameters, continuations that another process uses, and LINQ.
using Microsoft.Azure.Cosmos;
using Microsoft.Azure.Cosmos.Linq;
using static Emulators;

internal static class Queries
{
    private const int Count = 60;
    private static readonly int[] All = [.. Enumerable.Range(0, Count)];
    private static Container data = null!;

    public static async Task Run(Steps steps)
    {
        data = await Container("queries");
        for (var number = 0; number < Count; number++)
        {
            await data.CreateItemAsync(new Item("item", $"{number}", number, number % 3 == 0 ? "fizz" : null));
            await data.CreateItemAsync(new Item($"{number}", "ada", number));
        }

        const string those = "FROM c WHERE c.id = 'item'";
        await Rows(steps, "ORDER BY", All, $"SELECT VALUE c.number {those} ORDER BY c.number");
        await Rows(steps, "ORDER BY … DESC", [.. All.Reverse()], $"SELECT VALUE c.number {those} ORDER BY c.number DESC");
        await Rows(steps, "TOP", [59, 58, 57], $"SELECT TOP 3 VALUE c.number {those} ORDER BY c.number DESC");
        await Rows(steps, "OFFSET … LIMIT", [57, 58, 59], $"SELECT VALUE c.number {those} ORDER BY c.number OFFSET 57 LIMIT 5");
        await Rows(steps, "SUM", [1770], $"SELECT VALUE SUM(c.number) {those}");
        await Rows(steps, "COUNT", [60], $"SELECT VALUE COUNT(1) {those}");
        await Rows(steps, "MIN", [6], $"SELECT VALUE MIN(c.number) {those} AND c.number > 5");
        await Rows(steps, "MAX", [59], $"SELECT VALUE MAX(c.number) {those}");
        await Rows(steps, "AVG", [2], $"SELECT VALUE AVG(c.number) {those} AND c.number < 5");
        await Rows(steps, "COUNT of nothing", [0], $"SELECT VALUE COUNT(1) {those} AND c.number < 0");
        await Rows(steps, "DISTINCT", [0, 1], "SELECT DISTINCT VALUE c.number FROM c WHERE c.number < 2", sorted: true);
        await Rows(steps, "a parameter", [7], $"SELECT VALUE c.number {those} AND c.number = @number", ("@number", 7));
        await Rows(steps, "a list as a parameter", [3, 5], $"SELECT VALUE c.number {those} AND ARRAY_CONTAINS(@numbers, c.number)",
            ("@numbers", new[] { 3, 5 }), sorted: true);
        await Rows(steps, "functions", [0, 3, 6, 9],
            $"SELECT VALUE c.number {those} AND STARTSWITH(c.text, 'FI', true) AND c.number BETWEEN 0 AND 9", sorted: true);

        await steps.Check("one partition key, in pages of at most seven", (true, true), async () =>
        {
            var pages = await Pages("SELECT VALUE c.number FROM c ORDER BY c.number", new() { MaxItemCount = 7, PartitionKey = new("ada") });
            return (pages.SelectMany(page => page).SequenceEqual(All), pages.Max(page => page.Count) == 7);
        });
        await steps.Check("what each of three ranges has is all there is", (3, true), async () =>
        {
            var ranges = await data.GetFeedRangesAsync();
            List<int> rows = [];
            foreach (var range in ranges) rows.AddRange(await OfRange($"SELECT VALUE c.number {those}", range));
            return (ranges.Count, rows.Order().SequenceEqual(All));
        });
        await steps.Check("an order that a new client resumes after each page", All, async () =>
        {
            List<int> rows = [];
            string? token = null;
            do
            {
                using var client = Connect();
                using var page = client.GetContainer(DatabaseId, "queries")
                    .GetItemQueryIterator<int>($"SELECT VALUE c.number {those} ORDER BY c.number", token, new() { MaxItemCount = 20 });
                var answer = await page.ReadNextAsync();
                rows.AddRange(answer);
                token = answer.Count <= 20 ? answer.ContinuationToken : throw new InvalidOperationException("a page is larger than asked for");
            }
            while (token != null && rows.Count < 2 * Count);
            return rows.ToArray();
        });
        await steps.Check("what is no SQL", "400/0", () => Refusal(() => Pages("SELECT VALUE FROM WHERE", new())));
        await Linq(steps);
    }

    private static async Task Linq(Steps steps)
    {
        IQueryable<Item> Items() => data.GetItemLinqQueryable<Item>().Where(item => item.id == "item");
        await steps.Check("LINQ: a filter, an order, a projection", [57, 54, 51], async () =>
        {
            using var rows = Items().Where(item => item.text == "fizz").OrderByDescending(item => item.number)
                .Select(item => item.number).Take(3).ToFeedIterator();
            List<int> read = [];
            while (rows.HasMoreResults) read.AddRange(await rows.ReadNextAsync());
            return read.ToArray();
        });
        await steps.Check("LINQ: a count and a sum", (20, 1770), async () =>
            ((await Items().Where(item => item.text != null).CountAsync()).Resource, (await Items().Select(item => item.number).SumAsync()).Resource));
    }

    private static Task Rows(Steps steps, string name, int[] expected, string text, (string, object)? parameter = null, bool sorted = false) =>
        steps.Check(name, expected, async () =>
        {
            var query = new QueryDefinition(text);
            if (parameter is var (named, value)) query.WithParameter(named, value);
            var rows = (await Pages(query, new() { MaxItemCount = 7 })).SelectMany(page => page);
            return (sorted ? rows.Order() : rows).ToArray();
        });

    private static Task<List<List<int>>> Pages(string text, QueryRequestOptions options) => Pages(new QueryDefinition(text), options);

    private static async Task<List<List<int>>> Pages(QueryDefinition query, QueryRequestOptions options)
    {
        using var pages = data.GetItemQueryIterator<int>(query, requestOptions: options);
        return await Read(pages);
    }

    private static async Task<IEnumerable<int>> OfRange(string text, FeedRange range)
    {
        using var pages = data.GetItemQueryIterator<int>(range, new QueryDefinition(text), null, null);
        return (await Read(pages)).SelectMany(page => page);
    }

    private static async Task<List<List<int>>> Read(FeedIterator<int> pages)
    {
        List<List<int>> read = [];
        while (pages.HasMoreResults) read.Add([.. await pages.ReadNextAsync()]);
        return read;
    }
}
