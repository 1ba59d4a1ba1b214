// Write to Cosmos DB as Microsoft's sample does: with an envelope around each object, one object alone or several in a batch, and etags as
// conditions.
using System.Net;
using Microsoft.Azure.Cosmos;
using Newtonsoft.Json;

internal sealed class ReferenceStore(Container data)
{
    public const string ContactType = "contact";
    private const int Forever = -1, EventTtl = 36_000;

    public enum State { Created, Replaced }

    public static Change Create(string id) => new(State.Created, new(id, id, ContactType, new Contact(), Forever));

    // Write on the condition that the document still has the etag with which it was read.
    public static Change Replace(Document read, Contact? contact = null) => new(State.Replaced, read with { Data = contact ?? read.Data });

    public static Change Event(string contactId, string action) =>
        new(State.Created, new(Guid.NewGuid().ToString(), contactId, "domainEvent", new Contact { Action = action }, EventTtl));

    public async Task<Document> Read(string id, string? unlessEtag = null)
    {
        var answer = await data.ReadItemAsync<Document>(id, new(id), new() { IfNoneMatchEtag = unlessEtag });
        return answer.Resource with { Etag = answer.ETag };
    }

    // Set in each document the etag that the service returned.
    public async Task<string> Commit(params Change[] changes)
    {
        var etags = changes.Length == 1 ? [await CommitOne(changes[0])] : await CommitInBatch(changes);
        for (var index = 0; index < changes.Length; index++) changes[index].Document.Etag = etags[index];
        return $"{changes.Length} documents, {etags.Count(etag => !string.IsNullOrEmpty(etag))} etags";
    }

    public static async Task<string> Refused(Task ask)
    {
        try { await ask; }
        catch (CosmosException refused) { return $"{(int)refused.StatusCode}"; }
        catch (BatchRefusedException refused) { return $"{(int)refused.Status}"; }
        return "not refused";
    }

    private async Task<string> CommitOne(Change change)
    {
        var document = change.Document;
        var options = new ItemRequestOptions { EnableContentResponseOnWrite = false, IfMatchEtag = document.Etag };
        var key = new PartitionKey(document.PartitionKey);
        var answer = change.State == State.Created
            ? await data.CreateItemAsync(document, key, options)
            : await data.ReplaceItemAsync(document, document.Id, key, options);
        return answer.ETag;
    }

    private async Task<string[]> CommitInBatch(Change[] changes)
    {
        var batch = data.CreateTransactionalBatch(new PartitionKey(changes[0].Document.PartitionKey));
        foreach (var (state, document) in changes)
        {
            if (state == State.Created) batch.CreateItem(document);
            else batch.ReplaceItem(document.Id, document, new() { IfMatchEtag = document.Etag });
        }
        using var answer = await batch.ExecuteAsync();
        if (answer.IsSuccessStatusCode) return [.. answer.Select(one => one.ETag)];
        throw new BatchRefusedException(answer.First(one => one.StatusCode != HttpStatusCode.FailedDependency).StatusCode);
    }

    public sealed record Change(State State, Document Document);

    private sealed class BatchRefusedException(HttpStatusCode status) : Exception
    {
        public HttpStatusCode Status => status;
    }
}

internal sealed record Contact
{
    public string? Action { get; init; } // of an event

    public string FirstName { get; init; } = "John";

    public string LastName { get; init; } = "Doe";

    public string? Description { get; init; }

    public string? Email { get; init; }

    public string? Company { get; init; }

    public bool Deleted { get; init; }
}

internal sealed record Document(string Id, string PartitionKey, string Type, Contact Data, int Ttl)
{
    [JsonProperty("_etag")]
    public string? Etag { get; set; }
}
