// The change feed processor and its estimator: leases, a restart, a split, a handler that fails, and manual checkpoints.
using System.Collections.Concurrent;
using Microsoft.Azure.Cosmos;
using Newtonsoft.Json.Linq;
using static Emulators;

internal static class Processor
{
    private static Container data = null!;
    private static Container leases = null!;
    private static int written;

    public static async Task Run(Steps steps)
    {
        data = await Container("processed");
        leases = await Container("leases", 1, "/id");
        await Write(60);

        ConcurrentQueue<int> seen = [];
        var first = await Start("first", seen);
        await steps.Check("from the beginning, all", Numbers(0, 60), () => Seen(seen, 60));
        await steps.Check("a lease for each range, which names its owner", ["0: first", "1: first", "2: first"], Owners);
        await steps.Check("the estimator finds nothing left", 0, () => Left(0));
        await first.StopAsync();

        await Write(15);
        await steps.Check("the estimator counts what came while it stood still", 15, () => Left(15));
        await steps.Check("the estimator pushes the same figure", 15, Pushed);

        seen.Clear();
        var second = await Start("second", seen);
        await steps.Check("a restart goes on after the last checkpoint", Numbers(60, 15), () => Seen(seen, 15));

        seen.Clear();
        await Write(20);
        await Split(data, "0");
        await Write(40);
        await steps.Check("over a split, all", Numbers(75, 60), () => Seen(seen, 60));
        await steps.Check("over a split, each key in its order", 0, () => Task.FromResult(OutOfOrder(seen)));
        await steps.Check("the leases of the children took the place of the parent's", ["1", "2", "3", "4"],
            async () => (await Leases()).Select(lease => (string)lease["LeaseToken"]!).Order().ToArray());
        await steps.Check("the estimator finds nothing left of the children", 0, () => Left(0));
        await second.StopAsync();

        await FailedHandler(steps);
        await Checkpoints(steps);
    }

    private static async Task FailedHandler(Steps steps)
    {
        ConcurrentQueue<int> seen = [];
        ConcurrentQueue<string> told = [];
        var failures = 1;
        var processor = await Start("failing", seen, builder => builder.WithErrorNotification((lease, error) =>
        {
            told.Enqueue(error.GetBaseException().Message);
            return Task.CompletedTask;
        }), before: () => Interlocked.Decrement(ref failures) == 0 ? throw new InvalidOperationException("on purpose") : 0);
        await Write(1);
        await steps.Check("what a handler refused comes again", Numbers(135, 1), () => Seen(seen, 1));
        await steps.Check("and its error is told", true, async () =>
        {
            await Until(() => told.Any(text => text.Contains("on purpose")), "the error was told");
            return true;
        });
        await processor.StopAsync();
    }

    private static async Task Checkpoints(Steps steps)
    {
        async Task<int[]> Run(bool checkpoint, int count)
        {
            ConcurrentQueue<int> seen = [];
            var processor = data.GetChangeFeedProcessorBuilderWithManualCheckpoint<Item>("by hand",
                    async (ChangeFeedProcessorContext context, IReadOnlyCollection<Item> changes, Func<Task> save, CancellationToken _) =>
                    {
                        if (checkpoint) await save();
                        foreach (var item in changes) seen.Enqueue(item.number);
                    })
                .WithInstanceName("one").WithLeaseContainer(leases).WithPollInterval(TimeSpan.FromMilliseconds(100))
                .WithStartTime(DateTime.MinValue.ToUniversalTime()).Build();
            await processor.StartAsync();
            var found = await Seen(seen, count);
            await processor.StopAsync();
            return found;
        }

        await steps.Check("by hand: all, without a checkpoint", Numbers(0, 136), () => Run(checkpoint: false, 136));
        await steps.Check("by hand: all again, with checkpoints", Numbers(0, 136), () => Run(checkpoint: true, 136));
        await steps.Check("by hand: what came after the checkpoints", Numbers(136, 5), async () =>
        {
            await Write(5);
            return await Run(checkpoint: true, 5);
        });
    }

    private static async Task<ChangeFeedProcessor> Start(string instance, ConcurrentQueue<int> seen,
        Func<ChangeFeedProcessorBuilder, ChangeFeedProcessorBuilder>? change = null, Func<int>? before = null)
    {
        var builder = data.GetChangeFeedProcessorBuilder<Item>("outbox", (ChangeFeedProcessorContext _, IReadOnlyCollection<Item> changes, CancellationToken _) =>
            {
                before?.Invoke();
                foreach (var item in changes) seen.Enqueue(item.number);
                return Task.CompletedTask;
            })
            .WithInstanceName(instance)
            .WithLeaseContainer(leases)
            .WithLeaseConfiguration(TimeSpan.FromSeconds(1), TimeSpan.FromSeconds(30), TimeSpan.FromSeconds(5))
            .WithPollInterval(TimeSpan.FromMilliseconds(100))
            .WithMaxItems(10)
            .WithStartTime(DateTime.MinValue.ToUniversalTime());
        var processor = (change?.Invoke(builder) ?? builder).Build();
        await processor.StartAsync();
        return processor;
    }

    // Write items to ten partition keys. The numbers of the items of each key increase.
    private static async Task Write(int count)
    {
        for (; count > 0; count--, written++) await data.CreateItemAsync(new Item($"{written}", $"{written % 10}", written));
    }

    private static int[] Numbers(int first, int count) => [.. Enumerable.Range(first, count)];

    // Count each change once, because a processor may receive a change again.
    private static async Task<int[]> Seen(ConcurrentQueue<int> seen, int count)
    {
        await Until(() => seen.Distinct().Count() >= count, $"{count} changes were seen");
        return [.. seen.Distinct().Order()];
    }

    private static int OutOfOrder(ConcurrentQueue<int> seen) => seen.Distinct().GroupBy(number => number % 10)
        .Sum(key => key.Zip(key.Skip(1)).Count(pair => pair.First > pair.Second));

    private static async Task<List<JObject>> Leases()
    {
        using var rows = leases.GetItemQueryIterator<JObject>("SELECT * FROM c WHERE IS_DEFINED(c.LeaseToken) AND STARTSWITH(c.id, 'outbox')");
        List<JObject> read = [];
        while (rows.HasMoreResults) read.AddRange(await rows.ReadNextAsync());
        return read;
    }

    private static async Task<string[]> Owners() =>
        [.. (await Leases()).Select(lease => $"{lease["LeaseToken"]}: {lease["Owner"]}").Order()];

    // Wait for the expected lag, because a processor writes its checkpoint only after its handler has returned.
    private static async Task<long> Left(long expected)
    {
        var estimator = data.GetChangeFeedEstimator("outbox", leases);
        long left = -1;
        for (var attempt = 0; attempt < 200 && left != expected; attempt++)
        {
            if (attempt > 0) await Task.Delay(50);
            using var states = estimator.GetCurrentStateIterator();
            left = 0;
            while (states.HasMoreResults) left += (await states.ReadNextAsync()).Sum(state => state.EstimatedLag);
        }
        return left;
    }

    private static async Task<long> Pushed()
    {
        var told = new TaskCompletionSource<long>();
        var estimator = data.GetChangeFeedEstimatorBuilder("outbox", (left, _) =>
        {
            told.TrySetResult(left);
            return Task.CompletedTask;
        }, TimeSpan.FromMilliseconds(100)).WithLeaseContainer(leases).Build();
        await estimator.StartAsync();
        var figure = await told.Task.WaitAsync(TimeSpan.FromSeconds(120));
        await estimator.StopAsync();
        return figure;
    }
}
