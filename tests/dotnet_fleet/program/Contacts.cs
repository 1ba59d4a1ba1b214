using Microsoft.Azure.Cosmos;
using Newtonsoft.Json;

namespace Peer;

// The documents of Microsoft's sample (`DataObject<T>`, `Contact` and its events), and a service that writes them in batches, with the
// condition `IfMatchEtag`.
internal sealed record DataObject<T>(string Id, string PartitionKey, string Type, T Data, int Ttl)
{
    [JsonProperty("_etag")] public string? Etag { get; set; }
}

internal sealed record Name(string FirstName, string LastName);

internal sealed record Company(string CompanyName, string? Street = null, string? City = null);

internal sealed record Contact(Guid Id, Name Name, string? Description, string? Email, Company Company)
{
    public DateTimeOffset CreatedAt { get; init; } = DateTimeOffset.UtcNow;
    public DateTimeOffset? ModifiedAt { get; init; }
    public DateTimeOffset? DeletedAt { get; init; }
    public bool Deleted { get; init; }
}

internal sealed record Event(Guid ContactId, string Action, Name? Name = null, Contact? Contact = null)
{
    public Guid Id { get; init; } = Guid.NewGuid();
    public DateTimeOffset CreatedAt { get; init; } = DateTimeOffset.UtcNow;
}

internal sealed class Contacts(Container data)
{
    private const int EventTtl = 36000;

    // Create contacts and rename them in turn, until SIGTERM. Print a line for each commit that succeeded.
    public async Task Commit(int contacts, int first, int aSecond, CancellationToken ended)
    {
        var ids = Enumerable.Range(first, contacts).Select(number => Id(number)).ToArray();
        foreach (var id in ids) Say(await Create(id));
        for (var number = 0; !ended.IsCancellationRequested; number++)
        {
            Say(await Rename(ids[number % contacts], $"Ada {number}"));
            await Task.Delay(1000 / aSecond);
        }
        Console.WriteLine("ended");
    }

    public async Task Do(string what, string[] given)
    {
        var id = Guid.Parse(given[0]);
        if (what == "create") Say(await Create(id));
        if (what == "rename") Say(await Rename(id, given[1]));
        if (what == "rename-as-read") Say(await Save(await Read(id) with { Etag = given[1] }, "ContactNameUpdatedEvent"));
        if (what == "delete") Say(await Delete(id));
        var read = await Read(id);
        Console.WriteLine(JsonConvert.SerializeObject(new
        {
            read.Etag,
            read.Type,
            read.Ttl,
            read.Data.Name.FirstName,
            read.Data.Name.LastName,
            read.Data.Company.City,
            read.Data.Deleted,
            Modified = read.Data.ModifiedAt != null,
        }));
    }

    private static Guid Id(int number) => new($"00000000-0000-4000-8000-{number:D12}");

    private static void Say(Event one) => Console.WriteLine($"committed {one.ContactId} {one.Id}");

    private async Task<DataObject<Contact>> Read(Guid id) =>
        (await data.ReadItemAsync<DataObject<Contact>>($"{id}", new($"{id}"))).Resource;

    private async Task<Event> Create(Guid id)
    {
        var contact = new Contact(id, new("Ada", "Lovelace"), null, "ada@example.org", new("Engines", City: "London"));
        var told = new Event(id, "ContactCreatedEvent", Contact: contact);
        using var answer = await data.CreateTransactionalBatch(new($"{id}"))
            .CreateItem(new DataObject<Contact>($"{id}", $"{id}", "contact", contact, -1)).CreateItem(Stored(told)).ExecuteAsync();
        return Answered(answer, told);
    }

    private async Task<Event> Rename(Guid id, string firstName)
    {
        var read = await Read(id);
        var contact = read.Data with { Name = read.Data.Name with { FirstName = firstName }, ModifiedAt = DateTimeOffset.UtcNow };
        return await Save(read with { Data = contact }, "ContactNameUpdatedEvent");
    }

    private async Task<Event> Delete(Guid id)
    {
        var read = await Read(id);
        return await Save(read with { Data = read.Data with { Deleted = true, DeletedAt = DateTimeOffset.UtcNow } }, "ContactDeletedEvent");
    }

    private async Task<Event> Save(DataObject<Contact> changed, string action)
    {
        var told = new Event(changed.Data.Id, action, action == "ContactNameUpdatedEvent" ? changed.Data.Name : null);
        using var answer = await data.CreateTransactionalBatch(new(changed.PartitionKey))
            .ReplaceItem(changed.Id, changed, new() { IfMatchEtag = changed.Etag }).CreateItem(Stored(told)).ExecuteAsync();
        return Answered(answer, told);
    }

    private static DataObject<Event> Stored(Event told) => new($"{told.Id}", $"{told.ContactId}", "domainEvent", told, EventTtl);

    private static Event Answered(TransactionalBatchResponse answer, Event told) =>
        answer.IsSuccessStatusCode ? told : throw new InvalidOperationException($"the batch was answered {(int)answer.StatusCode}");
}
