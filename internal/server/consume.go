package server

import (
	"context"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/consumer"
	"github.com/ledgerd/ledgerd/internal/consumer/kafka"
	"github.com/ledgerd/ledgerd/internal/consumer/nats"
	"github.com/ledgerd/ledgerd/internal/consumer/rabbitmq"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// brokers has the supported brokers.
var brokers = map[string]consumer.Open{consumer.Kafka: kafka.Open, consumer.NATS: nats.Open,
	consumer.RabbitMQ: rabbitmq.Open}

// consume starts the consumers. An unknown tenant is an error. Connects to an unreachable broker are retried.
func (s *Server) consume(ctx, background context.Context) error {
	if len(s.options.Consume) == 0 {
		return nil
	}
	metrics := consumer.NewMetrics(s.registry)
	messages := &rpc.Messages{Mutations: s.mutations, Gate: s.gate,
		Policies: access.NewTenantPolicies(s.reads).RequiringApproval}
	var all []*consumer.Consumer
	for _, settings := range s.options.Consume {
		tenant, err := access.Tenant(ctx, s.reads, settings.Tenant)
		if err != nil {
			return fmt.Errorf("consumer %s: %w", settings.Name, err)
		}
		all = append(all, &consumer.Consumer{Settings: settings, Open: brokers[settings.Broker], Tenant: tenant,
			Messages: messages,
			Reader:   inbox.NewReader(s.reads), Metrics: metrics, Log: s.log})
	}
	for _, c := range all {
		s.work.Go(func() { c.Run(pg.ForTenants(background, c.Tenant)) })
	}
	return nil
}
