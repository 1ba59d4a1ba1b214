// Service Bus with AMQPNetLite, a general AMQP client: keys and tokens, sessions, settlement, and messages of the library's publisher.
using System.Globalization;
using System.Net;
using System.Security.Cryptography;
using System.Security.Cryptography.X509Certificates;
using System.Text;
using System.Text.Json;
using Amqp;
using Amqp.Framing;
using Amqp.Sasl;
using Amqp.Types;
using static Emulators;

internal static class Messages
{
    private const string Topic = "events", Subscription = "events/Subscriptions/all";
    private static readonly TimeSpan Wait = TimeSpan.FromSeconds(60);
    private static readonly Dictionary<string, string> Namespace = Variable("SERVICEBUS_CONNECTION_STRING").TrimEnd(';').Split(';')
        .Select(part => part.Split('=', 2)).ToDictionary(part => part[0], part => part[1]);

    public static async Task Run(Steps steps)
    {
        await Rights(steps);
        var connection = await Connect(Namespace["SharedAccessKey"]);
        await Sessions(steps, connection);
        await Settlement(steps, connection);
        await State(steps, connection);
        var published = JsonSerializer.Deserialize<Published[]>(await File.ReadAllTextAsync(Variable("PUBLISHED")))!;
        await steps.Check("what the library's publisher wrote", published, async () =>
        {
            var (receiver, _) = await Accept(connection, "dotnet-ours");
            List<Published> read = [];
            while (read.Count < published.Length) read.Add(Read(await Receive(receiver)));
            await receiver.CloseAsync();
            return read.ToArray();
        });
        await connection.CloseAsync();
    }

    private static async Task Rights(Steps steps)
    {
        await steps.Check("name and value of a key", "", async () =>
        {
            var connection = await Connect(Namespace["SharedAccessKey"]);
            await Send(connection, "dotnet-plain", "1");
            await connection.CloseAsync();
            return "";
        });
        await steps.Check("another value of the key", "refused", async () =>
        {
            try { await Connect("other"); }
            catch (AmqpException refused) when (refused.Error.Condition == ErrorCode.UnauthorizedAccess) { return "refused"; }
            return "let in";
        });
        await steps.Check("anonymous, without a token", "amqp:unauthorized-access", async () =>
        {
            var connection = await Connect(null);
            try { await Send(connection, "dotnet-anonymous", "1"); }
            catch (AmqpException refused) { return refused.Error.Condition.ToString(); }
            finally { await connection.CloseAsync(); }
            return "sent";
        });
        foreach (var (name, key, hours, status) in new[] { ("a token", Namespace["SharedAccessKey"], 1, "202, sent"),
            ("a token of another key", "other", 1, "401, amqp:unauthorized-access"),
            ("a token that has run out", Namespace["SharedAccessKey"], -1, "401, amqp:unauthorized-access") })
        {
            await steps.Check($"anonymous, with {name}", status, async () =>
            {
                var connection = await Connect(null);
                var token = Token($"sb://{Namespace["Endpoint"].Replace("sb://", "")}/{Topic}", key, DateTimeOffset.UtcNow.AddHours(hours));
                var answer = await Ask(connection, "$cbs", new()
                {
                    ["operation"] = "put-token", ["type"] = "servicebus.windows.net:sastoken", ["name"] = $"amqp://host/{Topic}",
                }, token);
                var sent = "sent";
                try { await Send(connection, "dotnet-token", "1"); }
                catch (AmqpException refused) { sent = refused.Error.Condition.ToString(); }
                await connection.CloseAsync();
                return $"{answer.ApplicationProperties["status-code"]}, {sent}";
            });
        }
    }

    private static async Task Sessions(Steps steps, Connection connection)
    {
        await steps.Check("a session by its name has its messages in order, without one whose id was there", "dotnet-a: 1 2 3", async () =>
        {
            foreach (var number in new[] { "1", "2", "2", "3" })
            {
                await Send(connection, "dotnet-a", number);
                await Send(connection, "dotnet-b", $"b{number}");
            }
            return await Drain(connection, "dotnet-a", 3);
        });
        await steps.Check("a session that another receiver holds", "com.microsoft:session-cannot-be-locked", async () =>
        {
            var (holder, _) = await Accept(connection, "dotnet-b");
            try { await Accept(connection, "dotnet-b"); }
            catch (AmqpException refused) { return refused.Error.Condition.ToString(); }
            finally { await holder.CloseAsync(); }
            return "accepted";
        });
        await steps.Check("each session that is free is the next one once", true, async () =>
        {
            foreach (var session in new[] { "dotnet-c", "dotnet-d" }) await Send(connection, session, "1");
            HashSet<string> accepted = [];
            List<ReceiverLink> held = [];
            while (!accepted.IsSupersetOf(["dotnet-b", "dotnet-c", "dotnet-d"]))
            {
                var (receiver, session) = await Accept(connection, null);
                held.Add(receiver);
                if (!accepted.Add(session)) throw new InvalidOperationException($"{session} is held twice");
            }
            foreach (var receiver in held) await receiver.CloseAsync();
            return true;
        });
        await steps.Check("a session that nothing was sent to is accepted by its name", "dotnet-empty", async () =>
        {
            var (receiver, session) = await Accept(connection, "dotnet-empty");
            await receiver.CloseAsync();
            return session;
        });
        foreach (var session in new[] { "dotnet-b", "dotnet-c", "dotnet-d", "dotnet-plain", "dotnet-token" })
        {
            await Drain(connection, session, session == "dotnet-b" ? 3 : 1);
        }
        await steps.Check("where no session is free, the wait ends when it was asked to", "com.microsoft:timeout", async () =>
        {
            List<ReceiverLink> held = [];
            try { while (true) held.Add((await Accept(connection, null)).Receiver); }
            catch (AmqpException refused) { return refused.Error.Condition.ToString(); }
            finally { foreach (var receiver in held) await receiver.CloseAsync(); }
        });
    }

    private static async Task Settlement(Steps steps, Connection connection)
    {
        await Send(connection, "dotnet-settled", "1");
        var (receiver, _) = await Accept(connection, "dotnet-settled");
        await steps.Check("a message that is released comes again, and does not count", ("1", 0u, 0u), async () =>
        {
            var first = await Receive(receiver, settle: receiver.Release);
            var second = await Receive(receiver, settle: again => receiver.Modify(again, deliveryFailed: true));
            return (Body(second), first.Header.DeliveryCount, second.Header.DeliveryCount);
        });
        await steps.Check("one that failed comes again, and counts", ("1", 1u), async () =>
        {
            var third = await Receive(receiver, settle: dead => receiver.Reject(dead, new Error("com.microsoft:dead-letter")
            {
                Info = new Fields { [new Symbol("DeadLetterReason")] = "broken", [new Symbol("DeadLetterErrorDescription")] = "on purpose" },
            }));
            return (Body(third), third.Header.DeliveryCount);
        });
        await receiver.CloseAsync();
        await steps.Check("one that is rejected is among the dead letters, with its reason", ("1", "broken", "on purpose"), async () =>
        {
            var session = new Session(connection);
            var dead = new ReceiverLink(session, "dead", $"{Subscription}/$DeadLetterQueue");
            dead.SetCredit(1);
            var letter = await Receive(dead);
            await session.CloseAsync();
            return (Body(letter), letter.ApplicationProperties["DeadLetterReason"], letter.ApplicationProperties["DeadLetterErrorDescription"]);
        });
        await steps.Check("a message that is too large", "amqp:link:message-size-exceeded", async () =>
        {
            try { await Send(connection, "dotnet-large", new string('x', 300_000)); }
            catch (AmqpException refused) { return refused.Error.Condition.ToString(); }
            return "sent";
        });
    }

    private static async Task State(Steps steps, Connection connection)
    {
        var (receiver, _) = await Accept(connection, "dotnet-state");
        Task<Message> Managed(string operation, Map body) =>
            Ask(connection, $"{Subscription}/$management", new() { ["operation"] = $"com.microsoft:{operation}" }, body);

        await steps.Check("the state of a session", (200, "kept"), async () =>
        {
            var set = await Managed("set-session-state", new() { ["session-id"] = "dotnet-state", ["session-state"] = "kept"u8.ToArray() });
            var got = await Managed("get-session-state", new() { ["session-id"] = "dotnet-state" });
            return ((int)set.ApplicationProperties["statusCode"], Encoding.UTF8.GetString((byte[])((Map)got.Body)["session-state"]));
        });
        await steps.Check("the lock of a session is renewed", (200, true), async () =>
        {
            var renewed = await Managed("renew-session-lock", new() { ["session-id"] = "dotnet-state" });
            return ((int)renewed.ApplicationProperties["statusCode"], (DateTime)((Map)renewed.Body)["expiration"] > DateTime.UtcNow);
        });
        await receiver.CloseAsync();
    }

    // Connect with the key as a password, or anonymously if it is null.
    private static Task<Connection> Connect(string? key)
    {
        var factory = new ConnectionFactory();
        factory.SSL.RemoteCertificateValidationCallback = (_, certificate, chain, errors) =>
            Trusted((X509Certificate2)certificate!, chain!, errors);
        if (key == null) factory.SASL.Profile = SaslProfile.Anonymous;
        var where = new Uri($"amqps://{Variable("SERVICEBUS_ADDRESS")}");
        return factory.CreateAsync(new Address(where.Host, where.Port, key == null ? null : Namespace["SharedAccessKeyName"], key, "/", "amqps"));
    }

    private static string Token(string resource, string key, DateTimeOffset expires)
    {
        var (escaped, seconds) = (WebUtility.UrlEncode(resource), expires.ToUnixTimeSeconds().ToString(CultureInfo.InvariantCulture));
        var signature = HMACSHA256.HashData(Encoding.UTF8.GetBytes(key), Encoding.UTF8.GetBytes($"{escaped}\n{seconds}"));
        return $"SharedAccessSignature sr={escaped}&sig={WebUtility.UrlEncode(Convert.ToBase64String(signature))}&se={seconds}&skn={Namespace["SharedAccessKeyName"]}";
    }

    private static async Task<Message> Ask(Connection connection, string node, Dictionary<string, object> properties, object body)
    {
        var session = new Session(connection);
        var answers = new ReceiverLink(session, "answers", new Attach
        {
            Source = new Source { Address = node }, Target = new Target { Address = "answers" },
        }, null);
        answers.SetCredit(1);
        var request = new Message(body)
        {
            Properties = new() { MessageId = Guid.NewGuid().ToString(), ReplyTo = "answers" }, ApplicationProperties = new(),
        };
        foreach (var (name, value) in properties) request.ApplicationProperties[name] = value;
        await new SenderLink(session, "questions", node).SendAsync(request, Wait);
        var answer = await Receive(answers);
        await session.CloseAsync();
        return answer;
    }

    private static async Task Send(Connection connection, string sessionId, string body)
    {
        var session = new Session(connection);
        var message = new Message
        {
            Properties = new() { MessageId = $"{sessionId}: {(body.Length < 20 ? body : "large")}", GroupId = sessionId },
            BodySection = new Data { Binary = Encoding.UTF8.GetBytes(body) },
        };
        try { await new SenderLink(session, "sender", Topic).SendAsync(message, Wait); }
        finally { await session.CloseAsync(); }
    }

    // Accept the session with this id, or the next free session if it is null.
    private static async Task<(ReceiverLink Receiver, string Session)> Accept(Connection connection, string? sessionId)
    {
        var filter = new Symbol("com.microsoft:session-filter");
        var attached = new TaskCompletionSource<string>(TaskCreationOptions.RunContinuationsAsynchronously);
        var receiver = new ReceiverLink(new Session(connection), $"receiver {Guid.NewGuid()}", new Attach
        {
            Source = new Source { Address = Subscription, FilterSet = new() { [filter] = sessionId } },
            Target = new Target(),
            Properties = new Fields { [new Symbol("com.microsoft:timeout")] = 500u },
        }, (_, answer) =>
        {
            if (answer.Source is Source { FilterSet: { } filters } && filters[filter] is { } session) attached.TrySetResult(session.ToString()!);
        });
        receiver.AddClosedCallback((_, error) => attached.TrySetException(new AmqpException(error ?? new Error("closed"))));
        var accepted = await attached.Task.WaitAsync(Wait);
        receiver.SetCredit(1);
        return (receiver, accepted);
    }

    private static async Task<string> Drain(Connection connection, string sessionId, int count)
    {
        var (receiver, session) = await Accept(connection, sessionId);
        List<string> bodies = [];
        while (bodies.Count < count) bodies.Add(Body(await Receive(receiver)));
        await receiver.CloseAsync();
        return $"{session}: {string.Join(' ', bodies)}";
    }

    private static async Task<Message> Receive(ReceiverLink receiver, Action<Message>? settle = null)
    {
        var message = await receiver.ReceiveAsync(Wait) ?? throw new TimeoutException("no message came");
        (settle ?? receiver.Accept)(message);
        return message;
    }

    private static string Body(Message message) => Encoding.UTF8.GetString((byte[])message.Body);

    private static Published Read(Message message)
    {
        var (about, properties) = (message.Properties, message.ApplicationProperties?.Map ?? []);
        return new(about.MessageId, about.GroupId, about.Subject, about.ContentType,
            properties.ToDictionary(one => (string)one.Key, one => new object[] { one.Value.GetType().Name, one.Value }), Body(message));
    }

    // A message. For each application property it has the name of its type and its value.
    private sealed record Published(
        string id, string session, string subject, string contentType, Dictionary<string, object[]> properties, string body);
}
