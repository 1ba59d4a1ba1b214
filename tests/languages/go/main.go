// Commits a batch, reads the change feed, sends and receives by session, with the SDKs for Go; reads what the library sent.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

type results struct {
	Committed []int32  `json:"committed"`
	Refused   []int32  `json:"refused"`
	Changes   []string `json:"changes"`
	Received  []string `json:"received"`
	Ours      []ours   `json:"ours"`
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
	_, err = database.CreateContainer(ctx, azcosmos.ContainerProperties{
		ID:                     "data",
		PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/partitionKey"}, Version: 2},
	}, nil)
	check(err)
	container, err := database.NewContainer("data")
	check(err)
	out.Committed = batch(ctx, container, "entity", "event")
	out.Refused = batch(ctx, container, "other", "event")
	ranges, err := container.ReadFeedRanges(ctx, nil)
	check(err)
	options := &azcosmos.ChangeFeedOptions{FeedRange: &ranges[0]}
	for {
		page, err := container.ReadChangeFeed(ctx, options)
		check(err)
		if page.RawResponse.StatusCode == http.StatusNotModified || len(page.Items) == 0 {
			return
		}
		for _, document := range page.Items {
			var item struct {
				ID string `json:"id"`
			}
			check(json.Unmarshal(document, &item))
			out.Changes = append(out.Changes, item.ID)
		}
		options.Continuation = &page.ContinuationToken
	}
}

func serviceBus(ctx context.Context, out *results) {
	// At a port that is not 5671, this SDK takes host and port together for the name in the certificate.
	client, err := azservicebus.NewClientFromConnectionString(os.Getenv("SERVICEBUS_CONNECTION_STRING"),
		&azservicebus.ClientOptions{TLSConfig: &tls.Config{ServerName: "localhost"}})
	check(err)
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
