// The addresses of the emulators, clients that trust their certificate, and requests to their control API.
using System.Diagnostics;
using System.Net.Http.Json;
using System.Net.Security;
using System.Security.Cryptography.X509Certificates;
using System.Text.Json;
using Microsoft.Azure.Cosmos;

internal static class Emulators
{
    public const string DatabaseId = "dotnet";

    private static readonly TimeSpan Hung = TimeSpan.FromSeconds(120);
    private static readonly HttpClient Http = new();
    private static readonly X509Certificate2 Authority = X509CertificateLoader.LoadCertificateFromFile(Variable("CERTIFICATE"));
    private static readonly CosmosClient Client = Connect();

    public static string Variable(string name) => Environment.GetEnvironmentVariable(name) ?? throw new InvalidOperationException(name);

    public static CosmosClient Connect(Action<CosmosClientOptions>? change = null, string? endpoint = null)
    {
        var options = new CosmosClientOptions
        {
            ConnectionMode = ConnectionMode.Gateway,
            LimitToEndpoint = true,
            ServerCertificateCustomValidationCallback = Trusted,
        };
        change?.Invoke(options);
        return new(endpoint ?? Variable("COSMOS_ENDPOINT"), Variable("COSMOS_KEY"), options);
    }

    // Create a container. Its throughput is 6,000 request units a second for each range, so it has that number of physical partitions.
    public static async Task<Container> Container(string id, int ranges = 3, params string[] key)
    {
        var database = (await Client.CreateDatabaseIfNotExistsAsync(DatabaseId)).Database;
        var properties = key.Length == 0 ? new ContainerProperties(id, "/partitionKey") : new ContainerProperties(id, [.. key]);
        properties.DefaultTimeToLive = -1;
        return (await database.CreateContainerAsync(properties, 6_000 * ranges)).Container;
    }

    public static bool Trusted(X509Certificate2 certificate, X509Chain chain, SslPolicyErrors errors) =>
        TrustedBy(Authority, certificate, chain, errors);

    public static bool TrustedBy(X509Certificate2 authority, X509Certificate2 certificate, X509Chain chain, SslPolicyErrors errors)
    {
        chain.ChainPolicy.TrustMode = X509ChainTrustMode.CustomRootTrust;
        chain.ChainPolicy.CustomTrustStore.Clear();
        chain.ChainPolicy.CustomTrustStore.Add(authority);
        chain.ChainPolicy.RevocationMode = X509RevocationMode.NoCheck;
        return (errors & ~SslPolicyErrors.RemoteCertificateChainErrors) == SslPolicyErrors.None && chain.Build(certificate);
    }

    // Return the status and substatus with which a request is refused, such as "409/0" for a conflict.
    public static async Task<string> Refusal(Func<Task> ask)
    {
        try { await ask(); }
        catch (CosmosException refused) { return $"{(int)refused.StatusCode}/{refused.SubStatusCode}"; }
        return "not refused";
    }

    public static Task Fault(object rule) => Steer("faults", rule);

    public static async Task<int> FaultsLeft() =>
        (await Http.GetFromJsonAsync<JsonElement>($"{Variable("CONTROL")}/cosmos/stats")).GetProperty("faults").GetInt32();

    // Move the clock of the emulator forward, and return its new time.
    public static async Task<DateTime> Advance(int seconds)
    {
        var now = (await Steer("clock", new { advance_s = seconds })).GetProperty("now").GetDouble();
        return DateTimeOffset.FromUnixTimeMilliseconds((long)(now * 1000)).UtcDateTime;
    }

    public static Task Split(Container container, string range) =>
        Steer("split", new { database = DatabaseId, container = container.Id, range });

    public static Task Throttle(Container container, int requestUnits, object? buckets = null) =>
        Steer("throttle", new { database = DatabaseId, container = container.Id, request_units = requestUnits, buckets });

    public static async Task Until(Func<bool> fact, string what)
    {
        var clock = Stopwatch.StartNew();
        while (!fact()) await (clock.Elapsed < Hung ? Task.Delay(20) : throw new TimeoutException($"not after {Hung}: {what}"));
    }

    private static async Task<JsonElement> Steer(string path, object body)
    {
        using var answer = await Http.PostAsJsonAsync($"{Variable("CONTROL")}/cosmos/{path}", body);
        var text = await answer.Content.ReadAsStringAsync();
        if (!answer.IsSuccessStatusCode) throw new InvalidOperationException(text);
        return text == "" ? default : JsonElement.Parse(text);
    }
}

internal sealed record Item(string id, string partitionKey, int number, string? text = null, int ttl = -1);
