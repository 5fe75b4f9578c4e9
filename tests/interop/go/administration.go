package main

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// settings are those of queues and subscriptions that the tests look at.
type settings struct {
	LockDuration     *string             `json:"lock_duration,omitempty"`
	MaxDeliveryCount *int32              `json:"max_delivery_count,omitempty"`
	RequiresSession  *bool               `json:"requires_session,omitempty"`
	ForwardTo        *string             `json:"forward_to,omitempty"`
	UserMetadata     *string             `json:"user_metadata,omitempty"`
	Status           *admin.EntityStatus `json:"status,omitempty"`
}

func (s settings) queue(into admin.QueueProperties) admin.QueueProperties {
	set(&into.LockDuration, s.LockDuration)
	set(&into.MaxDeliveryCount, s.MaxDeliveryCount)
	set(&into.RequiresSession, s.RequiresSession)
	set(&into.ForwardTo, s.ForwardTo)
	set(&into.UserMetadata, s.UserMetadata)
	set(&into.Status, s.Status)
	return into
}

func set[T any](into **T, value *T) {
	if value != nil {
		*into = value
	}
}

func ofQueue(found admin.QueueProperties) settings {
	return settings{
		found.LockDuration, found.MaxDeliveryCount, found.RequiresSession, found.ForwardTo, found.UserMetadata, found.Status,
	}
}

type named struct {
	Name         string `json:"name"`
	Entity       string `json:"entity"`
	Subscription string `json:"subscription"`
	settings
}

// correlation has the names that @azure/service-bus gives them, for one form in the tests.
type correlation struct {
	Subject       *string        `json:"subject,omitempty"`
	CorrelationID *string        `json:"correlationId,omitempty"`
	MessageID     *string        `json:"messageId,omitempty"`
	Properties    map[string]any `json:"applicationProperties,omitempty"`
}

type rule struct {
	named
	SQL         string         `json:"sql"`
	Parameters  map[string]any `json:"parameters"`
	Correlation *correlation   `json:"correlation"`
	Action      string         `json:"action"`
}

func pages[Page any](ctx context.Context, pager *runtime.Pager[Page], names func(Page) []string) (any, error) {
	all := []string{}
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, names(page)...)
	}
	return all, nil
}

func eachName[T any](items []T, name func(T) string) []string {
	var names []string
	for _, item := range items {
		names = append(names, name(item))
	}
	return names
}

var administration = map[string]operation{
	"administer": on(func(_ context.Context, _ any, given reach) (any, error) {
		client, err := admin.NewClientFromConnectionString(given.Connection, nil)
		return keep(client), err
	}),

	"namespace": on(func(ctx context.Context, client *admin.Client, _ none) (any, error) {
		found, err := client.GetNamespaceProperties(ctx, nil)
		return found.SKU, err
	}),

	"create_queue": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		properties := given.queue(admin.QueueProperties{})
		made, err := client.CreateQueue(ctx, given.Name, &admin.CreateQueueOptions{Properties: &properties})
		return ofQueue(made.QueueProperties), err
	}),

	"queue": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		found, err := client.GetQueue(ctx, given.Name, nil)
		if found == nil || err != nil {
			return nil, err
		}
		return ofQueue(found.QueueProperties), nil
	}),

	"queue_exists": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		found, err := client.GetQueue(ctx, given.Name, nil)
		return found != nil, err
	}),

	"update_queue": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		found, err := client.GetQueue(ctx, given.Name, nil)
		if err != nil {
			return nil, err
		}
		updated, err := client.UpdateQueue(ctx, given.Name, given.queue(found.QueueProperties), nil)
		return ofQueue(updated.QueueProperties), err
	}),

	"queues": on(func(ctx context.Context, client *admin.Client, _ none) (any, error) {
		return pages(ctx, client.NewListQueuesPager(nil), func(page admin.ListQueuesResponse) []string {
			return eachName(page.Queues, func(item admin.QueueItem) string { return item.QueueName })
		})
	}),

	"queue_counts": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		found, err := client.GetQueueRuntimeProperties(ctx, given.Name, nil)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"active":    found.ActiveMessageCount,
			"dead":      found.DeadLetterMessageCount,
			"scheduled": found.ScheduledMessageCount,
		}, nil
	}),

	"delete_queue": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		_, err := client.DeleteQueue(ctx, given.Name, nil)
		return nil, err
	}),

	"create_topic": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		made, err := client.CreateTopic(ctx, given.Name, nil)
		return made.TopicName, err
	}),

	"topics": on(func(ctx context.Context, client *admin.Client, _ none) (any, error) {
		return pages(ctx, client.NewListTopicsPager(nil), func(page admin.ListTopicsResponse) []string {
			return eachName(page.Topics, func(item admin.TopicItem) string { return item.TopicName })
		})
	}),

	"subscription_count": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		found, err := client.GetTopicRuntimeProperties(ctx, given.Name, nil)
		if err != nil {
			return nil, err
		}
		return found.SubscriptionCount, nil
	}),

	"delete_topic": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		_, err := client.DeleteTopic(ctx, given.Name, nil)
		return nil, err
	}),

	"create_subscription": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		properties := admin.SubscriptionProperties{
			LockDuration: given.LockDuration, MaxDeliveryCount: given.MaxDeliveryCount, RequiresSession: given.RequiresSession,
		}
		made, err := client.CreateSubscription(
			ctx, given.Entity, given.Name, &admin.CreateSubscriptionOptions{Properties: &properties},
		)
		return settings{
			LockDuration: made.LockDuration, MaxDeliveryCount: made.MaxDeliveryCount, RequiresSession: made.RequiresSession,
			ForwardTo: made.ForwardTo, UserMetadata: made.UserMetadata, Status: made.Status,
		}, err
	}),

	"subscriptions": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		pager := client.NewListSubscriptionsPager(given.Entity, nil)
		return pages(ctx, pager, func(page admin.ListSubscriptionsResponse) []string {
			return eachName(page.Subscriptions, func(item admin.SubscriptionPropertiesItem) string { return item.SubscriptionName })
		})
	}),

	"delete_subscription": on(func(ctx context.Context, client *admin.Client, given named) (any, error) {
		_, err := client.DeleteSubscription(ctx, given.Entity, given.Name, nil)
		return nil, err
	}),

	"create_rule": on(func(ctx context.Context, client *admin.Client, given rule) (any, error) {
		options := &admin.CreateRuleOptions{Name: &given.Name}
		if given.Correlation != nil {
			options.Filter = &admin.CorrelationFilter{
				Subject:               given.Correlation.Subject,
				CorrelationID:         given.Correlation.CorrelationID,
				MessageID:             given.Correlation.MessageID,
				ApplicationProperties: given.Correlation.Properties,
			}
		} else {
			options.Filter = &admin.SQLFilter{Expression: given.SQL, Parameters: given.Parameters}
		}
		if given.Action != "" {
			options.Action = &admin.SQLAction{Expression: given.Action}
		}
		made, err := client.CreateRule(ctx, given.Entity, given.Subscription, options)
		return made.Name, err
	}),

	"rule": on(func(ctx context.Context, client *admin.Client, given rule) (any, error) {
		found, err := client.GetRule(ctx, given.Entity, given.Subscription, given.Name, nil)
		if err != nil {
			return nil, err
		}
		described := map[string]any{}
		switch filter := found.Filter.(type) {
		case *admin.TrueFilter:
			described["sql"] = "1=1"
		case *admin.SQLFilter:
			described["sql"] = filter.Expression
			if len(filter.Parameters) > 0 {
				described["parameters"] = filter.Parameters
			}
		case *admin.CorrelationFilter:
			described["correlation"] = correlation{
				filter.Subject, filter.CorrelationID, filter.MessageID, filter.ApplicationProperties,
			}
		}
		if action, has := found.Action.(*admin.SQLAction); has {
			described["action"] = action.Expression
		}
		return described, nil
	}),

	"rule_names": on(func(ctx context.Context, client *admin.Client, given rule) (any, error) {
		pager := client.NewListRulesPager(given.Entity, given.Subscription, nil)
		return pages(ctx, pager, func(page admin.ListRulesResponse) []string {
			return eachName(page.Rules, func(item admin.RuleProperties) string { return item.Name })
		})
	}),

	"delete_rule": on(func(ctx context.Context, client *admin.Client, given rule) (any, error) {
		_, err := client.DeleteRule(ctx, given.Entity, given.Subscription, given.Name, nil)
		return nil, err
	}),
}
