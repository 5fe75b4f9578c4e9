package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	largeBody  = 100_000 // bytes from which on the digest of a body is given instead
	closeLimit = 10 * time.Second
)

// message is a message as the test writes it.
type message struct {
	Body             string            `json:"body"`
	Size             int               `json:"size"`
	MessageID        *string           `json:"message_id"`
	SessionID        *string           `json:"session_id"`
	CorrelationID    *string           `json:"correlation_id"`
	Subject          *string           `json:"subject"`
	ContentType      *string           `json:"content_type"`
	To               *string           `json:"to"`
	ReplyTo          *string           `json:"reply_to"`
	ReplyToSessionID *string           `json:"reply_to_session_id"`
	PartitionKey     *string           `json:"partition_key"`
	TimeToLiveMs     *int64            `json:"time_to_live_ms"`
	Properties       map[string]tagged `json:"properties"`
}

func (m message) make() (*azservicebus.Message, error) {
	properties, err := decodeAll(m.Properties)
	made := &azservicebus.Message{
		Body:                  []byte(m.Body),
		MessageID:             m.MessageID,
		SessionID:             m.SessionID,
		CorrelationID:         m.CorrelationID,
		Subject:               m.Subject,
		ContentType:           m.ContentType,
		To:                    m.To,
		ReplyTo:               m.ReplyTo,
		ReplyToSessionID:      m.ReplyToSessionID,
		PartitionKey:          m.PartitionKey,
		ApplicationProperties: properties,
	}
	if m.Size > 0 {
		made.Body = bytes.Repeat([]byte(m.Body), m.Size/len(m.Body))
	}
	if m.TimeToLiveMs != nil {
		timeToLive := time.Duration(*m.TimeToLiveMs) * time.Millisecond
		made.TimeToLive = &timeToLive
	}
	return made, err
}

func makeAll(given []message) ([]*azservicebus.Message, error) {
	var made []*azservicebus.Message
	for _, each := range given {
		next, err := each.make()
		if err != nil {
			return nil, err
		}
		made = append(made, next)
	}
	return made, nil
}

func withBody(described map[string]any, body []byte) map[string]any {
	if len(body) < largeBody {
		described["body"] = string(body)
	} else {
		digest := sha256.Sum256(body)
		described["size"], described["sha256"] = len(body), hex.EncodeToString(digest[:])
	}
	return described
}

// describe returns a message without what is not there, so that tests name what they expect and no more.
func describe(received *azservicebus.ReceivedMessage) map[string]any {
	described := withBody(map[string]any{
		"handle":         keep(received),
		"message_id":     received.MessageID,
		"number":         *received.SequenceNumber,
		"delivery_count": received.DeliveryCount - 1, // this SDK counts the delivery under way, others do not
		"state":          [...]string{"active", "deferred", "scheduled"}[received.State],
	}, received.Body)
	for name, text := range map[string]*string{
		"session_id":              received.SessionID,
		"correlation_id":          received.CorrelationID,
		"subject":                 received.Subject,
		"content_type":            received.ContentType,
		"to":                      received.To,
		"reply_to":                received.ReplyTo,
		"reply_to_session_id":     received.ReplyToSessionID,
		"partition_key":           received.PartitionKey,
		"dead_letter_reason":      received.DeadLetterReason,
		"dead_letter_description": received.DeadLetterErrorDescription,
		"dead_letter_source":      received.DeadLetterSource,
	} {
		if text != nil {
			described[name] = *text
		}
	}
	for name, at := range map[string]*time.Time{
		"enqueued_ms": received.EnqueuedTime, "locked_until_ms": received.LockedUntil,
	} {
		if at != nil {
			described[name] = at.UnixMilli()
		}
	}
	if received.TimeToLive != nil {
		described["time_to_live_ms"] = received.TimeToLive.Milliseconds()
	}
	if received.ApplicationProperties != nil {
		described["properties"] = encodeAll(received.ApplicationProperties)
	}
	return described
}

func tellAll(received []*azservicebus.ReceivedMessage) []map[string]any {
	described := []map[string]any{}
	for _, each := range received {
		described = append(described, describe(each))
	}
	return described
}

type (
	received   = azservicebus.ReceivedMessage
	properties = map[string]any
)

// receiver is what receivers with and without a session have.
type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*received, error)
	ReceiveDeferredMessages(context.Context, []int64, *azservicebus.ReceiveDeferredMessagesOptions) ([]*received, error)
	PeekMessages(context.Context, int, *azservicebus.PeekMessagesOptions) ([]*received, error)
	CompleteMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.CompleteMessageOptions) error
	AbandonMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.AbandonMessageOptions) error
	DeferMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.DeferMessageOptions) error
	DeadLetterMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.DeadLetterOptions) error
}

// collect receives up to so many messages. A call of the SDK that returned soon after the first would release what comes before the
// next call, while what comes after it is delivered: out of order.
func collect(ctx context.Context, from receiver, count int, waitMs int64) ([]*azservicebus.ReceivedMessage, error) {
	var received []*azservicebus.ReceivedMessage
	for len(received) < count {
		wait := time.Duration(waitMs) * time.Millisecond
		waiting, cancel := context.WithTimeout(ctx, wait)
		options := azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: wait}
		more, err := from.ReceiveMessages(waiting, count-len(received), &options)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		received = append(received, more...)
	}
	return received, nil
}

type source struct {
	Entity       string `json:"entity"`
	Subscription string `json:"subscription"`
	Delete       bool   `json:"delete"`
	DeadLetter   bool   `json:"dead_letter"`
}

func (s source) mode() azservicebus.ReceiveMode {
	if s.Delete {
		return azservicebus.ReceiveModeReceiveAndDelete
	}
	return azservicebus.ReceiveModePeekLock
}

type settlement struct {
	Message     int               `json:"message"`
	Reason      *string           `json:"reason"`
	Description *string           `json:"description"`
	Properties  map[string]tagged `json:"properties"`
}

// settling makes an operation of a way to settle.
func settling(settle func(context.Context, receiver, *received, settlement, properties) error) operation {
	return on(func(ctx context.Context, of receiver, given settlement) (any, error) {
		properties, err := decodeAll(given.Properties)
		if err != nil {
			return nil, err
		}
		return nil, settle(ctx, of, found(given.Message).(*azservicebus.ReceivedMessage), given, properties)
	})
}

var serviceBus = map[string]operation{
	"connect": on(func(_ context.Context, _ any, given reach) (any, error) {
		options := &azservicebus.ClientOptions{
			CustomEndpoint: given.customEndpoint(),
			RetryOptions: azservicebus.RetryOptions{
				MaxRetries: given.maxRetries(), RetryDelay: retryDelay, MaxRetryDelay: retryDelay,
			},
		}
		if given.Transport == overWebSocket {
			options.NewWebSocketConn = func(ctx context.Context, to azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
				return dialWebSocket(ctx, to.Host)
			}
		}
		client, err := azservicebus.NewClientFromConnectionString(given.connectionString(), options)
		return keep(client), err
	}),

	"sender": on(func(_ context.Context, client *azservicebus.Client, given source) (any, error) {
		sender, err := client.NewSender(given.Entity, nil)
		return keep(sender), err
	}),

	"receiver": on(func(_ context.Context, client *azservicebus.Client, given source) (any, error) {
		options := &azservicebus.ReceiverOptions{ReceiveMode: given.mode()}
		if given.DeadLetter {
			options.SubQueue = azservicebus.SubQueueDeadLetter
		}
		var made *azservicebus.Receiver
		var err error
		if given.Subscription == "" {
			made, err = client.NewReceiverForQueue(given.Entity, options)
		} else {
			made, err = client.NewReceiverForSubscription(given.Entity, given.Subscription, options)
		}
		return keep(made), err
	}),

	"session": on(func(ctx context.Context, client *azservicebus.Client, given struct {
		source
		SessionID *string `json:"session_id"`
		WaitMs    int64   `json:"wait_ms"`
	}) (any, error) {
		options := &azservicebus.SessionReceiverOptions{ReceiveMode: given.mode()}
		if given.WaitMs > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(given.WaitMs)*time.Millisecond)
			defer cancel()
		}
		var made *azservicebus.SessionReceiver
		var err error
		switch {
		case given.SessionID != nil && given.Subscription != "":
			made, err = client.AcceptSessionForSubscription(ctx, given.Entity, given.Subscription, *given.SessionID, options)
		case given.SessionID != nil:
			made, err = client.AcceptSessionForQueue(ctx, given.Entity, *given.SessionID, options)
		case given.Subscription != "":
			made, err = client.AcceptNextSessionForSubscription(ctx, given.Entity, given.Subscription, options)
		default:
			made, err = client.AcceptNextSessionForQueue(ctx, given.Entity, options)
		}
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"handle": keep(made), "session_id": made.SessionID(), "locked_until_ms": made.LockedUntil().UnixMilli(),
		}, nil
	}),

	"sessions": on(func(ctx context.Context, client *azservicebus.Client, given source) (any, error) {
		names := []string{}
		for pager := client.NewListSessionsForQueuePager(given.Entity, nil); pager.More(); {
			page, err := pager.NextPage(ctx)
			if err != nil {
				return nil, err
			}
			names = append(names, page.Sessions...)
		}
		return names, nil
	}),

	"send": on(func(ctx context.Context, sender *azservicebus.Sender, given struct {
		Messages []message `json:"messages"`
		How      string    `json:"how"`
	}) (any, error) {
		made, err := makeAll(given.Messages)
		if err != nil {
			return nil, err
		}
		if given.How == "" {
			for _, each := range made {
				if err := sender.SendMessage(ctx, each, nil); err != nil {
					return nil, err
				}
			}
			return len(made), nil
		}
		batch, err := sender.NewMessageBatch(ctx, nil)
		if err != nil {
			return nil, err
		}
		for _, each := range made {
			if err := batch.AddMessage(each, nil); errors.Is(err, azservicebus.ErrMessageTooLarge) {
				break
			} else if err != nil {
				return nil, err
			}
		}
		return batch.NumMessages(), sender.SendMessageBatch(ctx, batch, nil)
	}),

	"schedule": on(func(ctx context.Context, sender *azservicebus.Sender, given struct {
		Messages []message `json:"messages"`
		AtMs     int64     `json:"at_ms"`
	}) (any, error) {
		made, err := makeAll(given.Messages)
		if err != nil {
			return nil, err
		}
		return sender.ScheduleMessages(ctx, made, time.UnixMilli(given.AtMs), nil)
	}),

	"cancel": on(func(ctx context.Context, sender *azservicebus.Sender, given struct {
		Numbers []int64 `json:"numbers"`
	}) (any, error) {
		return nil, sender.CancelScheduledMessages(ctx, given.Numbers, nil)
	}),

	"receive": on(func(ctx context.Context, from receiver, given struct {
		Count  int   `json:"count"`
		WaitMs int64 `json:"wait_ms"`
	}) (any, error) {
		received, err := collect(ctx, from, given.Count, given.WaitMs)
		return tellAll(received), err
	}),

	"deferred": on(func(ctx context.Context, from receiver, given struct {
		Numbers []int64 `json:"numbers"`
	}) (any, error) {
		received, err := from.ReceiveDeferredMessages(ctx, given.Numbers, nil)
		return tellAll(received), err
	}),

	"peek": on(func(ctx context.Context, from receiver, given struct {
		Count int    `json:"count"`
		From  *int64 `json:"from"`
	}) (any, error) {
		seen, err := from.PeekMessages(ctx, given.Count, &azservicebus.PeekMessagesOptions{FromSequenceNumber: given.From})
		return tellAll(seen), err
	}),

	"complete": settling(func(ctx context.Context, of receiver, message *received, given settlement, properties properties) error {
		return of.CompleteMessage(ctx, message, nil)
	}),

	"abandon": settling(func(ctx context.Context, of receiver, message *received, given settlement, properties properties) error {
		return of.AbandonMessage(ctx, message, &azservicebus.AbandonMessageOptions{PropertiesToModify: properties})
	}),

	"defer": settling(func(ctx context.Context, of receiver, message *received, given settlement, properties properties) error {
		return of.DeferMessage(ctx, message, &azservicebus.DeferMessageOptions{PropertiesToModify: properties})
	}),

	"dead_letter": settling(func(ctx context.Context, of receiver, message *received, given settlement, properties properties) error {
		return of.DeadLetterMessage(ctx, message, &azservicebus.DeadLetterOptions{
			Reason: given.Reason, ErrorDescription: given.Description, PropertiesToModify: properties,
		})
	}),

	"renew": on(func(ctx context.Context, of *azservicebus.Receiver, given settlement) (any, error) {
		message := found(given.Message).(*azservicebus.ReceivedMessage)
		err := of.RenewMessageLock(ctx, message, nil)
		return milliseconds(message.LockedUntil), err
	}),

	"renew_session": on(func(ctx context.Context, of *azservicebus.SessionReceiver, _ none) (any, error) {
		err := of.RenewSessionLock(ctx, nil)
		return of.LockedUntil().UnixMilli(), err
	}),

	"state": on(func(ctx context.Context, of *azservicebus.SessionReceiver, _ none) (any, error) {
		state, err := of.GetSessionState(ctx, nil)
		if state == nil || err != nil {
			return nil, err
		}
		return string(state), nil
	}),

	"set_state": on(func(ctx context.Context, of *azservicebus.SessionReceiver, given struct {
		State *string `json:"state"`
	}) (any, error) {
		if given.State == nil {
			return nil, of.SetSessionState(ctx, nil, nil)
		}
		return nil, of.SetSessionState(ctx, []byte(*given.State), nil)
	}),

	"close": on(func(ctx context.Context, of interface{ Close(context.Context) error }, _ none) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, closeLimit)
		defer cancel()
		// Of links whose connection had been lost meanwhile these SDKs report errors, though they have recovered.
		_ = of.Close(ctx)
		return nil, nil
	}),
}
