// Do what test_languages.py expects of the program for each language, with the Azure SDKs for Go.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

type results struct {
	Committed    []int32            `json:"committed"`
	Refused      []int32            `json:"refused"`
	Changes      []string           `json:"changes"`
	Throughput   []int32            `json:"throughput"`
	Pages        map[string][][]int `json:"pages"`
	Hierarchical string             `json:"hierarchical"`
	Received     []string           `json:"received"`
	Ours         []ours             `json:"ours"`
	Deferred     string             `json:"deferred"`
	Administered []any              `json:"administered"`
	Signed       string             `json:"signed"`
	Expired      string             `json:"expired"`
}

type ours struct {
	ID          string            `json:"id"`
	Session     *string           `json:"session"`
	Subject     *string           `json:"subject"`
	ContentType *string           `json:"contentType"`
	Properties  map[string][2]any `json:"properties"`
	Body        string            `json:"body"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func batch(ctx context.Context, container *azcosmos.ContainerClient, ids ...string) []int32 {
	work := container.NewTransactionalBatch(azcosmos.NewPartitionKeyString("ada"))
	for _, id := range ids {
		work.CreateItem([]byte(fmt.Sprintf(`{"id": %q, "partitionKey": "ada"}`, id)), nil)
	}
	answer, err := container.ExecuteTransactionalBatch(ctx, work, nil)
	check(err)
	var statuses []int32
	for _, one := range answer.OperationResults {
		statuses = append(statuses, one.StatusCode)
	}
	return statuses
}

func cosmos(ctx context.Context, out *results) {
	key, err := azcosmos.NewKeyCredential(os.Getenv("COSMOS_KEY"))
	check(err)
	client, err := azcosmos.NewClientWithKey(os.Getenv("COSMOS_ENDPOINT"), key, nil)
	check(err)
	_, err = client.CreateDatabase(ctx, azcosmos.DatabaseProperties{ID: "go"}, nil)
	check(err)
	database, err := client.NewDatabase("go")
	check(err)
	container := create(ctx, database, "data", 400, "/partitionKey")
	out.Committed = batch(ctx, container, "entity", "event")
	out.Refused = batch(ctx, container, "other", "event")
	out.Changes = changes(ctx, container)
	ordered := create(ctx, database, "ordered", 18000, "/partitionKey")
	out.Throughput = replaceThroughput(ctx, ordered)
	out.Pages = readPages(ctx, ordered)
	out.Hierarchical = readHierarchical(ctx, create(ctx, database, "hierarchical", 400, "/tenant", "/user"))
}

func changes(ctx context.Context, container *azcosmos.ContainerClient) (ids []string) {
	ranges, err := container.ReadFeedRanges(ctx, nil)
	check(err)
	options := &azcosmos.ChangeFeedOptions{FeedRange: &ranges[0]}
	for {
		page, err := container.ReadChangeFeed(ctx, options)
		check(err)
		if page.RawResponse.StatusCode == http.StatusNotModified || len(page.Items) == 0 {
			return ids
		}
		for _, document := range page.Items {
			var item struct {
				ID string `json:"id"`
			}
			check(json.Unmarshal(document, &item))
			ids = append(ids, item.ID)
		}
		options.Continuation = &page.ContinuationToken
	}
}

func create(ctx context.Context, database *azcosmos.DatabaseClient, id string, units int32, paths ...string) *azcosmos.ContainerClient {
	key := azcosmos.PartitionKeyDefinition{Kind: azcosmos.PartitionKeyKindHash, Paths: paths, Version: 2}
	if len(paths) > 1 {
		key.Kind = azcosmos.PartitionKeyKindMultiHash
	}
	throughput := azcosmos.NewManualThroughputProperties(units)
	_, err := database.CreateContainer(ctx, azcosmos.ContainerProperties{ID: id, PartitionKeyDefinition: key},
		&azcosmos.CreateContainerOptions{ThroughputProperties: &throughput})
	check(err)
	container, err := database.NewContainer(id)
	check(err)
	return container
}

func replaceThroughput(ctx context.Context, container *azcosmos.ContainerClient) (units []int32) {
	read := func() {
		answer, err := container.ReadThroughput(ctx, nil)
		check(err)
		manual, _ := answer.ThroughputProperties.ManualThroughput()
		units = append(units, manual)
	}
	read()
	_, err := container.ReplaceThroughput(ctx, azcosmos.NewManualThroughputProperties(12000), nil)
	check(err)
	read()
	return units
}

func readPages(ctx context.Context, container *azcosmos.ContainerClient) map[string][][]int {
	ada := azcosmos.NewPartitionKeyString("ada")
	for number := range 10 {
		_, err := container.CreateItem(ctx, ada,
			[]byte(fmt.Sprintf(`{"id": "%d", "partitionKey": "ada", "number": %d}`, number, number)), nil)
		check(err)
	}
	const query = "SELECT c.number FROM c WHERE c.partitionKey = 'ada' ORDER BY c.number"
	// This SDK orders within one partition key only.
	return map[string][][]int{
		"key":    read(ctx, container, query, ada),
		"filter": read(ctx, container, query, azcosmos.NewPartitionKey()),
	}
}

// Read each page with a new query that has only the continuation of the page before.
func read(ctx context.Context, container *azcosmos.ContainerClient, query string, key azcosmos.PartitionKey) (pages [][]int) {
	options := azcosmos.QueryOptions{PageSizeHint: 5}
	for {
		page, err := container.NewQueryItemsPager(query, key, &options).NextPage(ctx)
		check(err)
		var numbers []int
		for _, document := range page.Items {
			var item struct {
				Number int `json:"number"`
			}
			check(json.Unmarshal(document, &item))
			numbers = append(numbers, item.Number)
		}
		pages = append(pages, numbers)
		if page.ContinuationToken == nil || *page.ContinuationToken == "" {
			return pages
		}
		options.ContinuationToken = page.ContinuationToken
	}
}

func readHierarchical(ctx context.Context, container *azcosmos.ContainerClient) string {
	for _, user := range []string{"ada", "bob"} {
		_, err := container.CreateItem(ctx, azcosmos.NewPartitionKeyString("acme").AppendString(user),
			[]byte(fmt.Sprintf(`{"id": "1", "tenant": "acme", "user": %q}`, user)), nil)
		check(err)
	}
	answer, err := container.ReadItem(ctx, azcosmos.NewPartitionKeyString("acme").AppendString("bob"), "1", nil)
	check(err)
	var item struct {
		User string `json:"user"`
	}
	check(json.Unmarshal(answer.Value, &item))
	return item.User
}

func connect(connectionString string) *azservicebus.Client {
	// At a port that is not 5671, this SDK takes host and port together for the name in the certificate.
	client, err := azservicebus.NewClientFromConnectionString(connectionString,
		&azservicebus.ClientOptions{TLSConfig: &tls.Config{ServerName: "localhost"}, RetryOptions: azservicebus.RetryOptions{MaxRetries: -1}})
	check(err)
	return client
}

// This uses a queue without sessions, because this SDK does not send the session id of a deferred message, which the service requires.
func receiveDeferred(ctx context.Context, client *azservicebus.Client) string {
	sender, err := client.NewSender("go", nil)
	check(err)
	check(sender.SendMessage(ctx, &azservicebus.Message{Body: []byte("later")}, nil))
	receiver, err := client.NewReceiverForQueue("go", nil)
	check(err)
	defer receiver.Close(ctx)
	messages, err := receiver.ReceiveMessages(ctx, 1, nil)
	check(err)
	check(receiver.DeferMessage(ctx, messages[0], nil))
	deferred, err := receiver.ReceiveDeferredMessages(ctx, []int64{*messages[0].SequenceNumber}, nil)
	check(err)
	check(receiver.CompleteMessage(ctx, deferred[0], nil))
	return string(deferred[0].Body)
}

func administer(ctx context.Context, out *results, messages *azservicebus.Client) {
	client, err := admin.NewClientFromConnectionString(os.Getenv("SERVICEBUS_CONNECTION_STRING"), nil)
	check(err)
	lock := "PT30S"
	_, err = client.CreateQueue(ctx, "go", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{LockDuration: &lock}})
	check(err)
	queue, err := client.GetQueue(ctx, "go", nil)
	check(err)
	counts, err := client.GetQueueRuntimeProperties(ctx, "go", nil)
	check(err)
	subscription, err := client.GetSubscription(ctx, "events", "all", nil)
	check(err)
	out.Deferred = receiveDeferred(ctx, messages)
	_, err = client.DeleteQueue(ctx, "go", nil)
	check(err)
	gone, err := client.GetQueue(ctx, "go", nil)
	check(err)
	out.Administered = []any{*queue.LockDuration, counts.ActiveMessageCount, *subscription.RequiresSession, gone != nil}
}

func sendSigned(ctx context.Context, out *results, client *azservicebus.Client) {
	session := "go-signed"
	send := func(connectionString string) error {
		signed := connect(connectionString)
		defer signed.Close(ctx)
		sender, err := signed.NewSender("events", nil)
		check(err)
		return sender.SendMessage(ctx, &azservicebus.Message{Body: []byte("signed"), SessionID: &session}, nil)
	}
	check(send(os.Getenv("SERVICEBUS_SIGNED")))
	out.Signed = string(receive(ctx, client, session, 1)[0].Body)
	if err := send(os.Getenv("SERVICEBUS_EXPIRED")); err != nil {
		out.Expired = regexp.MustCompile(`ExpiredToken: .*?'.*?'|$`).FindString(err.Error())
	}
}

func serviceBus(ctx context.Context, out *results) {
	client := connect(os.Getenv("SERVICEBUS_CONNECTION_STRING"))
	defer client.Close(ctx)
	sender, err := client.NewSender("events", nil)
	check(err)
	session := "go"
	for _, body := range []string{"go 1", "go 2"} {
		check(sender.SendMessage(ctx, &azservicebus.Message{Body: []byte(body), MessageID: &body, SessionID: &session}, nil))
	}
	for _, message := range receive(ctx, client, session, 2) {
		out.Received = append(out.Received, *message.SessionID+": "+string(message.Body))
	}
	for _, message := range receive(ctx, client, "go-ours", 4) {
		properties := map[string][2]any{}
		for name, value := range message.ApplicationProperties {
			properties[name] = [2]any{fmt.Sprintf("%T", value), value}
		}
		out.Ours = append(out.Ours, ours{message.MessageID, message.SessionID, message.Subject, message.ContentType,
			properties, string(message.Body)})
	}
	administer(ctx, out, client)
	sendSigned(ctx, out, client)
}

func receive(ctx context.Context, client *azservicebus.Client, session string, count int) []*azservicebus.ReceivedMessage {
	receiver, err := client.AcceptSessionForSubscription(ctx, "events", "all", session, nil)
	check(err)
	defer receiver.Close(ctx)
	var received []*azservicebus.ReceivedMessage
	for len(received) < count {
		messages, err := receiver.ReceiveMessages(ctx, count-len(received), nil)
		check(err)
		for _, message := range messages {
			received = append(received, message)
			check(receiver.CompleteMessage(ctx, message, nil))
		}
	}
	return received
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out results
	cosmos(ctx, &out)
	serviceBus(ctx, &out)
	check(json.NewEncoder(os.Stdout).Encode(out))
}
