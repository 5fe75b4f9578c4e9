package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

const eventWait = 100 * time.Millisecond // how long a reader waits for a batch to fill before it hands on what it has

type event struct {
	Body          string            `json:"body"`
	MessageID     *string           `json:"message_id"`
	CorrelationID *string           `json:"correlation_id"`
	ContentType   *string           `json:"content_type"`
	Properties    map[string]tagged `json:"properties"`
}

func (e event) make() (*azeventhubs.EventData, error) {
	properties, err := decodeAll(e.Properties)
	made := &azeventhubs.EventData{
		Body: []byte(e.Body), MessageID: e.MessageID, ContentType: e.ContentType, Properties: properties,
	}
	if e.CorrelationID != nil {
		made.CorrelationID = *e.CorrelationID
	}
	return made, err
}

func tellEvent(partition string, received *azeventhubs.ReceivedEventData) map[string]any {
	described := withBody(map[string]any{
		"partition": partition, "number": received.SequenceNumber, "offset": received.Offset,
	}, received.Body)
	for name, text := range map[string]*string{
		"message_id": received.MessageID, "content_type": received.ContentType, "key": received.PartitionKey,
	} {
		if text != nil {
			described[name] = *text
		}
	}
	if received.CorrelationID != nil {
		described["correlation_id"] = received.CorrelationID
	}
	if received.EnqueuedTime != nil {
		described["enqueued_ms"] = received.EnqueuedTime.UnixMilli()
	}
	if received.Properties != nil {
		described["properties"] = encodeAll(received.Properties)
	}
	return described
}

type position struct {
	Earliest   bool    `json:"earliest"`
	Latest     bool    `json:"latest"`
	Offset     *string `json:"offset"`
	Number     *int64  `json:"number"`
	EnqueuedMs *int64  `json:"enqueued_ms"`
	Inclusive  bool    `json:"inclusive"`
}

func (p position) make() azeventhubs.StartPosition {
	made := azeventhubs.StartPosition{Offset: p.Offset, SequenceNumber: p.Number, Inclusive: p.Inclusive}
	if p.Earliest {
		made.Earliest = &p.Earliest
	}
	if p.Latest {
		made.Latest = &p.Latest
	}
	if p.EnqueuedMs != nil {
		enqueued := time.UnixMilli(*p.EnqueuedMs)
		made.EnqueuedTime = &enqueued
	}
	return made
}

// store has ownership and checkpoints in memory, with compare-and-swap by etag as a shared store has it.
type store struct {
	lock        sync.Mutex
	count       int
	owners      map[string]azeventhubs.Ownership
	checkpoints map[string]azeventhubs.Checkpoint
}

func (s *store) ListOwnership(
	context.Context, string, string, string, *azeventhubs.ListOwnershipOptions,
) ([]azeventhubs.Ownership, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	var all []azeventhubs.Ownership
	for _, owner := range s.owners {
		all = append(all, owner)
	}
	return all, nil
}

func (s *store) ClaimOwnership(
	_ context.Context, wanted []azeventhubs.Ownership, _ *azeventhubs.ClaimOwnershipOptions,
) ([]azeventhubs.Ownership, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	var granted []azeventhubs.Ownership
	for _, each := range wanted {
		standing, there := s.owners[each.PartitionID]
		if there && (each.ETag == nil || *each.ETag != *standing.ETag) {
			continue
		}
		s.count++
		tag := azcore.ETag(fmt.Sprint(s.count))
		each.ETag, each.LastModifiedTime = &tag, time.Now().UTC()
		s.owners[each.PartitionID] = each
		granted = append(granted, each)
	}
	return granted, nil
}

func (s *store) ListCheckpoints(
	context.Context, string, string, string, *azeventhubs.ListCheckpointsOptions,
) ([]azeventhubs.Checkpoint, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	var all []azeventhubs.Checkpoint
	for _, checkpoint := range s.checkpoints {
		all = append(all, checkpoint)
	}
	return all, nil
}

func (s *store) SetCheckpoint(
	_ context.Context, checkpoint azeventhubs.Checkpoint, _ *azeventhubs.SetCheckpointOptions,
) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.checkpoints[checkpoint.PartitionID] = checkpoint
	return nil
}

// reading is a reader or processor at work: what came, and what went wrong.
type reading struct {
	lock   sync.Mutex
	events []map[string]any
	errors []failure
	end    context.CancelFunc
	work   sync.WaitGroup
	client *azeventhubs.ConsumerClient
}

// partitionReader is what readers of a partition and those of a processor have.
type partitionReader interface {
	ReceiveEvents(context.Context, int, *azeventhubs.ReceiveEventsOptions) ([]*azeventhubs.ReceivedEventData, error)
	Close(context.Context) error
}

func (r *reading) from(ctx context.Context, partition string, reader partitionReader) {
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		_ = reader.Close(closing)
	}()
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, eventWait)
		events, err := reader.ReceiveEvents(waiting, 50, nil)
		// A dial that the context's deadline ends is reported before the context reports it, and as canceled by a WebSocket.
		var network net.Error
		isLate := errors.Is(err, context.Canceled) || errors.As(err, &network) && network.Timeout()
		inTime := waiting.Err() == nil && !isLate
		cancel()
		r.lock.Lock()
		for _, each := range events {
			r.events = append(r.events, tellEvent(partition, each))
		}
		if err != nil && inTime {
			r.errors = append(r.errors, failure{codeOf(err), err.Error()})
			r.lock.Unlock()
			return
		}
		r.lock.Unlock()
		if processed, is := reader.(*azeventhubs.ProcessorPartitionClient); is && len(events) > 0 {
			if err := processed.UpdateCheckpoint(context.Background(), events[len(events)-1], nil); err != nil {
				panic(err)
			}
		}
	}
}

// process reads the partitions that the processor gets.
func (r *reading) process(ctx context.Context, processor *azeventhubs.Processor) {
	r.work.Go(func() {
		if err := processor.Run(ctx); err != nil {
			r.lock.Lock()
			defer r.lock.Unlock()
			r.errors = append(r.errors, failure{codeOf(err), err.Error()})
		}
	})
	r.work.Go(func() {
		for next := processor.NextPartitionClient(ctx); next != nil; next = processor.NextPartitionClient(ctx) {
			r.work.Go(func() { r.from(ctx, next.PartitionID(), next) })
		}
	})
}

func (r *reading) Close(ctx context.Context) error {
	r.end()
	r.work.Wait()
	return r.client.Close(ctx)
}

type hubReach struct {
	reach
	Hub   string `json:"hub"`
	Group string `json:"group"`
}

func (h hubReach) webSocket() func(context.Context, azeventhubs.WebSocketConnParams) (net.Conn, error) {
	if h.Transport != overWebSocket {
		return nil
	}
	return func(ctx context.Context, to azeventhubs.WebSocketConnParams) (net.Conn, error) {
		return dialWebSocket(ctx, to.Host)
	}
}

func (h hubReach) retry() azeventhubs.RetryOptions {
	return azeventhubs.RetryOptions{MaxRetries: h.maxRetries(), RetryDelay: retryDelay, MaxRetryDelay: retryDelay}
}

func (h hubReach) consumer() (*azeventhubs.ConsumerClient, error) {
	group := h.Group
	if group == "" {
		group = azeventhubs.DefaultConsumerGroup
	}
	return azeventhubs.NewConsumerClientFromConnectionString(h.connectionString(), h.Hub, group,
		&azeventhubs.ConsumerClientOptions{
			CustomEndpoint: h.customEndpoint(), NewWebSocketConn: h.webSocket(), RetryOptions: h.retry(),
		})
}

var eventHubs = map[string]operation{
	"producer": on(func(_ context.Context, _ any, given hubReach) (any, error) {
		client, err := azeventhubs.NewProducerClientFromConnectionString(given.connectionString(), given.Hub,
			&azeventhubs.ProducerClientOptions{
				CustomEndpoint: given.customEndpoint(), NewWebSocketConn: given.webSocket(), RetryOptions: given.retry(),
			})
		return keep(client), err
	}),

	"send_events": on(func(ctx context.Context, producer *azeventhubs.ProducerClient, given struct {
		Events    []event `json:"events"`
		Partition *string `json:"partition"`
		Key       *string `json:"key"`
	}) (any, error) {
		options := &azeventhubs.EventDataBatchOptions{PartitionID: given.Partition, PartitionKey: given.Key}
		batch, err := producer.NewEventDataBatch(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, each := range given.Events {
			made, err := each.make()
			if err != nil {
				return nil, err
			}
			if err := batch.AddEventData(made, nil); err != nil {
				return nil, err
			}
		}
		return batch.NumEvents(), producer.SendEventDataBatch(ctx, batch, nil)
	}),

	"hub": on(func(ctx context.Context, producer *azeventhubs.ProducerClient, _ none) (any, error) {
		found, err := producer.GetEventHubProperties(ctx, nil)
		return map[string]any{
			"name": found.Name, "partitions": found.PartitionIDs, "created_ms": found.CreatedOn.UnixMilli(),
		}, err
	}),

	"partition": on(func(ctx context.Context, producer *azeventhubs.ProducerClient, given struct {
		Partition string `json:"partition"`
	}) (any, error) {
		found, err := producer.GetPartitionProperties(ctx, given.Partition, nil)
		return map[string]any{
			"first":       found.BeginningSequenceNumber,
			"last":        found.LastEnqueuedSequenceNumber,
			"last_offset": found.LastEnqueuedOffset,
			"empty":       found.IsEmpty,
		}, err
	}),

	"store": on(func(context.Context, any, none) (any, error) {
		return keep(&store{owners: map[string]azeventhubs.Ownership{}, checkpoints: map[string]azeventhubs.Checkpoint{}}), nil
	}),

	"owners": on(func(_ context.Context, of *store, _ none) (any, error) {
		of.lock.Lock()
		defer of.lock.Unlock()
		names := []string{}
		for _, owner := range of.owners {
			if owner.OwnerID != "" {
				names = append(names, owner.OwnerID)
			}
		}
		return names, nil
	}),

	// Reads one partition from a position; or, with a store, processes all that fall to it and checkpoints each batch.
	"read": on(func(_ context.Context, _ any, given struct {
		hubReach
		Partition  string   `json:"partition"`
		Position   position `json:"position"`
		OwnerLevel *int64   `json:"owner_level"`
		Store      int      `json:"store"`
	}) (any, error) {
		client, err := given.consumer()
		if err != nil {
			return nil, err
		}
		ctx, end := context.WithCancel(context.Background())
		made := &reading{events: []map[string]any{}, errors: []failure{}, end: end, client: client}
		if given.Store != 0 {
			processor, err := azeventhubs.NewProcessor(client, found(given.Store).(*store), &azeventhubs.ProcessorOptions{
				LoadBalancingStrategy:       azeventhubs.ProcessorStrategyGreedy,
				UpdateInterval:              200 * time.Millisecond,
				PartitionExpirationDuration: 3 * time.Second,
				StartPositions:              azeventhubs.StartPositions{Default: given.Position.make()},
			})
			if err != nil {
				end()
				return nil, err
			}
			made.process(ctx, processor)
			return keep(made), nil
		}
		reader, err := client.NewPartitionClient(given.Partition, &azeventhubs.PartitionClientOptions{
			StartPosition: given.Position.make(), OwnerLevel: given.OwnerLevel,
		})
		if err != nil {
			end()
			return nil, err
		}
		made.work.Go(func() { made.from(ctx, given.Partition, reader) })
		return keep(made), nil
	}),

	// What was read when there are so many events, or an error if one is waited for, or at the end of the wait.
	"read_so_far": on(func(_ context.Context, of *reading, given struct {
		Count  int   `json:"count"`
		Error  bool  `json:"error"`
		WaitMs int64 `json:"wait_ms"`
	}) (any, error) {
		limit := time.Now().Add(time.Duration(given.WaitMs) * time.Millisecond)
		for {
			of.lock.Lock()
			enough := len(of.events) >= given.Count
			if given.Error {
				enough = len(of.errors) > 0
			}
			if enough || time.Now().After(limit) {
				described := map[string]any{"events": of.events[:], "errors": of.errors[:]}
				of.lock.Unlock()
				return described, nil
			}
			of.lock.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
	}),
}
