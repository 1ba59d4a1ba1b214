// Does with the SDK for .NET what its users do, through its binary batches too, and prints what it was answered as one line of JSON.
using System.Net.Security;
using System.Security.Cryptography.X509Certificates;
using System.Text.Json;
using Microsoft.Azure.Cosmos;

var authority = X509CertificateLoader.LoadCertificateFromFile(Variable("CERTIFICATE"));
var data = (await (await Client().CreateDatabaseIfNotExistsAsync("dotnet")).Database.CreateContainerIfNotExistsAsync(
    new ContainerProperties("data", "/partitionKey") { DefaultTimeToLive = -1 }, 18_000)).Container;
Console.WriteLine(JsonSerializer.Serialize(new Dictionary<string, object>
{
    ["batch"] = await Every(),
    ["conditions"] = await Conditions(),
    ["largest"] = await Largest(),
    ["bulk"] = await Bulk(),
    ["throttled"] = await AllStruck(),
    ["queries"] = await Queries(),
    ["feed"] = await Feed(),
}));

static string Variable(string name) => Environment.GetEnvironmentVariable(name) ?? throw new InvalidOperationException(name);

CosmosClient Client(bool bulk = false) => new(Variable("COSMOS_ENDPOINT"), Variable("COSMOS_KEY"), new CosmosClientOptions
{
    ConnectionMode = ConnectionMode.Gateway,
    LimitToEndpoint = true,
    AllowBulkExecution = bulk,
    ServerCertificateCustomValidationCallback = Trusted,
});

bool Trusted(X509Certificate2 certificate, X509Chain chain, SslPolicyErrors errors)
{
    chain.ChainPolicy.TrustMode = X509ChainTrustMode.CustomRootTrust;
    chain.ChainPolicy.CustomTrustStore.Add(authority);
    chain.ChainPolicy.RevocationMode = X509RevocationMode.NoCheck;
    return chain.Build(certificate);
}

TransactionalBatch Batch(string key) => data.CreateTransactionalBatch(new PartitionKey(key));

// The status of the batch, then that of each operation
static int[] Statuses(TransactionalBatchResponse answer) =>
    [(int)answer.StatusCode, .. answer.Select(one => (int)one.StatusCode)];

async Task<object> Every()
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
    return new
    {
        statuses = Statuses(answer),
        numbers = new[] { 0, 1, 2, 3, 4 }.Select(index => answer.GetOperationResultAtIndex<Item>(index).Resource.number),
        etags = answer.Count(one => one.ETag != null),
        withoutContent = answer[5].ResourceStream == null,
        charged = answer.RequestCharge > 0,
        session = answer.Headers.Session != null,
    };
}

async Task<object> Conditions()
{
    var stored = (await data.CreateItemAsync(new Item("c", "bob", 1))).ETag;
    using var replaced = await Batch("bob").ReplaceItem("c", new Item("c", "bob", 2), new() { IfMatchEtag = stored }).ExecuteAsync();
    using var stale = await Batch("bob").CreateItem(new Item("d", "bob", 1)).DeleteItem("c", new() { IfMatchEtag = stored }).ExecuteAsync();
    using var unmet = await Batch("bob")
        .PatchItem("c", [PatchOperation.Set("/number", 9)], new() { FilterPredicate = "from c where c.number = 1" }).ExecuteAsync();
    using var unchanged = await Batch("bob").ReadItem("c", new() { IfNoneMatchEtag = replaced[0].ETag }).ExecuteAsync();
    using var there = await Batch("bob").CreateItem(new Item("d", "bob", 1)).CreateItem(new Item("c", "bob", 1)).ExecuteAsync();
    return new[] { replaced, stale, unmet, unchanged, there }.Select(Statuses);
}

async Task<object> Largest()
{
    var hundred = Batch("cai");
    for (var number = 0; number < 100; number++) hundred.CreateItem(new Item($"{number}", "cai", number));
    using var full = await hundred.ExecuteAsync();
    using var large = await Batch("cai").CreateItem(new Item("large", "cai", 1, text: new string('x', 2_000_000))).ExecuteAsync();
    using var larger = await Batch("cai").CreateItem(new Item("larger", "cai", 1, text: new string('x', 2_100_000))).ExecuteAsync();
    return new[] { full, large, larger }.Select(answer => (int)answer.StatusCode);
}

// Over three ranges: every tenth is there already, and the first two requests are throttled, which the SDK sends again
async Task<object> Bulk()
{
    using var client = Client(bulk: true);
    var container = client.GetContainer("dotnet", "data");
    for (var number = 0; number < 200; number += 10) await data.CreateItemAsync(new Item("bulk", $"{number}", number));
    await Throttle("""{"operation": "batch", "status": 429, "substatus": 3200, "retry_after_ms": 10, "count": 2}""");
    var asked = Enumerable.Range(0, 200).Select(async number =>
    {
        try { return (await container.CreateItemAsync(new Item("bulk", $"{number}", number), new PartitionKey($"{number}"))).RequestCharge > 0 ? 201 : 0; }
        catch (CosmosException refused) { return (int)refused.StatusCode; }
    });
    return (await Task.WhenAll(asked)).GroupBy(status => status).OrderBy(same => same.Key).Select(same => new[] { same.Key, same.Count() });
}

async Task Throttle(string fault)
{
    using var http = new HttpClient();
    using var answer = await http.PostAsync($"{Variable("CONTROL")}/cosmos/faults", new StringContent(fault));
    answer.EnsureSuccessStatusCode();
}

async Task<bool> AllStruck()
{
    using var http = new HttpClient();
    using var statistics = JsonDocument.Parse(await http.GetStringAsync($"{Variable("CONTROL")}/cosmos/stats"));
    return statistics.RootElement.GetProperty("faults").GetInt32() == 0;
}

async Task<object> Queries()
{
    const string those = "FROM c WHERE c.id = 'bulk'";
    return new
    {
        top = await Rows($"SELECT TOP 3 VALUE c.number {those} ORDER BY c.number DESC"),
        window = await Rows($"SELECT VALUE c.number {those} ORDER BY c.number OFFSET 97 LIMIT 3"),
        paged = (await Rows($"SELECT VALUE c.number {those} ORDER BY c.number")).SequenceEqual(Enumerable.Range(0, 200)),
        sum = await Rows($"SELECT VALUE SUM(c.number) {those}"),
        least = await Rows($"SELECT VALUE MIN(c.number) {those} AND c.number > 5"),
        distinct = (await Rows($"SELECT DISTINCT VALUE c.number {those} AND c.number < 5")).Order(),
        named = await Rows("SELECT VALUE c.number FROM c WHERE c.number = @number AND c.id = 'bulk'", 7),
    };
}

async Task<List<int>> Rows(string text, int? number = null)
{
    var query = new QueryDefinition(text);
    if (number != null) query.WithParameter("@number", number);
    using var pages = data.GetItemQueryIterator<int>(query, requestOptions: new() { MaxItemCount = 7 });
    List<int> rows = [];
    while (pages.HasMoreResults) rows.AddRange(await pages.ReadNextAsync());
    return rows;
}

// Of one key, to the 304 that has no documents
async Task<object> Feed()
{
    var start = ChangeFeedStartFrom.Beginning(FeedRange.FromPartitionKey(new PartitionKey("ada")));
    using var feed = data.GetChangeFeedIterator<Item>(start, ChangeFeedMode.Incremental);
    List<string> seen = [];
    while (true)
    {
        var page = await feed.ReadNextAsync();
        if (page.StatusCode == System.Net.HttpStatusCode.NotModified) return seen;
        seen.AddRange(page.Select(item => item.id));
    }
}

internal sealed record Item(string id, string partitionKey, int number, string? text = null, int ttl = -1);
