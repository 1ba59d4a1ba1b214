using System.Dynamic;
using Amqp;
using Amqp.Framing;
using Microsoft.Azure.Cosmos;
using Newtonsoft.Json;

namespace Peer;

// The worker of Microsoft's sample (`Contacts.EventsProcessor`): it sends each event of a page to the topic, one after another.
internal static class EventsProcessor
{
    public static async Task Work(Container data, Container leases, string name, CancellationToken ended)
    {
        var topic = await Topic.Open();
        var processor = data.GetChangeFeedProcessorBuilder<ExpandoObject>(Given.Text("PROCESSOR"), topic.Send)
            .WithInstanceName(name)
            .WithLeaseContainer(leases)
            .WithMaxItems(25)
            .WithStartTime(new DateTime(2000, 1, 1, 0, 0, 0, DateTimeKind.Utc))
            .WithPollInterval(TimeSpan.FromSeconds(0.2))
            .WithLeaseConfiguration(Given.Seconds("ACQUIRE"), Given.Seconds("EXPIRATION"), Given.Seconds("RENEW"))
            .WithErrorNotification((lease, error) =>
            {
                Console.Error.WriteLine($"lease {lease}: {error.GetType().Name}: {error.Message.Split('\n')[0]}");
                return Task.CompletedTask;
            })
            .Build();
        await processor.StartAsync();
        Console.WriteLine("started");
        await Task.Delay(Timeout.Infinite, ended).ContinueWith(_ => { });
        await processor.StopAsync();
        await topic.Close();
    }

    public static async Task Estimate(Container data, Container leases)
    {
        Dictionary<string, object> found = [];
        using var estimates = data.GetChangeFeedEstimator(Given.Text("PROCESSOR"), leases).GetCurrentStateIterator();
        while (estimates.HasMoreResults)
            foreach (var one in await estimates.ReadNextAsync()) found[one.LeaseToken] = new { one.InstanceName, one.EstimatedLag };
        Console.WriteLine(JsonConvert.SerializeObject(found));
    }

    private sealed class Topic(Connection connection, Session session, SenderLink sender)
    {
        public static async Task<Topic> Open()
        {
            var fields = Given.Text("SERVICEBUS").TrimEnd(';').Split(';').Select(field => field.Split('=', 2)).ToDictionary(pair => pair[0], pair => pair[1]);
            var host = new Uri(fields["Endpoint"]);
            var address = new Address(host.Host, host.Port, fields["SharedAccessKeyName"], fields["SharedAccessKey"], "/", "amqp");
            var connection = await Connection.Factory.CreateAsync(address);
            var session = new Session(connection);
            return new(connection, session, new SenderLink(session, "events", Given.Text("TOPIC")));
        }

        public async Task Send(IReadOnlyCollection<ExpandoObject> changes, CancellationToken _)
        {
            foreach (var fields in changes.Cast<IDictionary<string, object>>())
            {
                if (!fields.TryGetValue("type", out var type) || type as string != "domainEvent") continue;
                dynamic document = fields;
                string json = JsonConvert.SerializeObject(document.data), key = document.partitionKey;
                using var message = new Message
                {
                    BodySection = new Data { Binary = System.Text.Encoding.UTF8.GetBytes(json) },
                    Properties = new() { MessageId = document.id, Subject = document.data.action, GroupId = key, ContentType = "application/json" },
                    MessageAnnotations = new() { [new Amqp.Types.Symbol("x-opt-partition-key")] = key },
                };
                await sender.SendAsync(message, TimeSpan.FromSeconds(30));
            }
        }

        public async Task Close()
        {
            await sender.CloseAsync();
            await session.CloseAsync();
            await connection.CloseAsync();
        }
    }
}
