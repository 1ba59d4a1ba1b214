// The parts of Microsoft's sample that the tests need, with the sample's settings of the client: the worker that sends events, the
// service that commits them, and the estimator of the .NET SDK. The endpoint, the database and the topic come from the environment.
using System.Net.Sockets;
using System.Runtime.InteropServices;
using Microsoft.Azure.Cosmos;
using Peer;

using var ended = new CancellationTokenSource();
using var asked = PosixSignalRegistration.Create(PosixSignal.SIGTERM, signal =>
{
    signal.Cancel = true;
    ended.Cancel();
});
using var client = new CosmosClient(Given.Text("COSMOS_ENDPOINT"), Given.Text("COSMOS_KEY"), new CosmosClientOptions
{
    ConnectionMode = ConnectionMode.Gateway,
    LimitToEndpoint = true,
    SerializerOptions = new() { PropertyNamingPolicy = CosmosPropertyNamingPolicy.CamelCase, IgnoreNullValues = true },
    HttpClientFactory = () => new HttpClient(new SocketsHttpHandler { ConnectCallback = Here }),
});
var database = client.GetDatabase(Given.Text("DATABASE"));
Container data = database.GetContainer("data"), leases = database.GetContainer("leases");
await (args[0] switch
{
    "work" => EventsProcessor.Work(data, leases, args[1], ended.Token),
    "estimate" => EventsProcessor.Estimate(data, leases),
    "commit" => new Contacts(data).Commit(int.Parse(args[1]), int.Parse(args[2]), int.Parse(args[3]), ended.Token),
    "contact" => new Contacts(data).Do(args[1], args[2..]),
    _ => throw new ArgumentException(args[0]),
});

// Connect to this machine whatever host name the endpoint has, because the host names of the tests are in no DNS.
static async ValueTask<Stream> Here(SocketsHttpConnectionContext context, CancellationToken ended)
{
    var socket = new Socket(SocketType.Stream, ProtocolType.Tcp) { NoDelay = true };
    await socket.ConnectAsync("127.0.0.1", context.DnsEndPoint.Port, ended);
    return new NetworkStream(socket, ownsSocket: true);
}

namespace Peer
{
    internal static class Given
    {
        public static string Text(string name) =>
            Environment.GetEnvironmentVariable(name) ?? throw new InvalidOperationException($"{name} is not set");

        public static TimeSpan Seconds(string name) => TimeSpan.FromSeconds(double.Parse(Text(name)));
    }
}
