package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/ledgerd/ledgerd/internal/consumer/consumertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const topic = "events"

// cluster is a mock cluster with one topic and a producer.
type cluster struct {
	t       *testing.T
	address string
	client  *kgo.Client

	mu   sync.Mutex
	ends map[int32]int64 // next offset of each partition
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, address: startGate(t, nil), ends: map[int32]int64{}}
	var err error
	c.client, err = kgo.NewClient(kgo.SeedBrokers(c.address), kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	return c
}

func (c *cluster) send(partition int32, id, body string) {
	r := &kgo.Record{Partition: partition, Value: []byte(body)}
	if id != "" {
		r.Headers = []kgo.RecordHeader{{Key: consumertest.IDHeader, Value: []byte(id)}}
	}
	if err := c.client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[partition] = max(c.ends[partition], r.Offset+1)
}

// left is the number of messages after the committed offsets.
func (c *cluster) left() int {
	r, of := kmsg.NewPtrOffsetFetchRequest(), kmsg.NewOffsetFetchRequestTopic()
	r.Group, of.Topic = "billing", topic
	for n := range mockPartitions {
		of.Partitions = append(of.Partitions, n)
	}
	r.Topics = append(r.Topics, of) // of one group, as in all versions before 8
	res, err := r.RequestWith(context.Background(), c.client)
	if err != nil {
		c.t.Error(err)
		return -1
	}
	committed := map[int32]int64{}
	for _, x := range res.Topics {
		for _, p := range x.Partitions {
			committed[p.Partition] = max(p.Offset, 0)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left := 0
	for n, end := range c.ends {
		left += int(end - committed[n])
	}
	return left
}

func (c *cluster) broker() consumertest.Broker {
	return consumertest.Broker{
		Settings: []string{"broker: kafka", "url: " + c.address, "topics: [" + topic + "]"},
		Send: func(id, body string) {
			n := int32(0)
			for _, b := range []byte(id) {
				n = (n*31 + int32(b)) & 0xffff
			}
			c.send(n%mockPartitions, id, body)
		},
		Left: c.left,
	}
}

func start(t *testing.T) consumertest.Broker { return newCluster(t).broker() }

func TestMessagesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	consumertest.EffectsOnce(t, start)
}

func TestAKilledConsumerLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	consumertest.Killed(t, start, 600, 4)
}

// A message that must be retried blocks its own partition and no other.
func TestAPartitionKeepsItsOrder(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	w := consumertest.NewWorld(t)
	for i := range 20 {
		from := "bank"
		if i == 7 {
			from = "b" // an account without money
		}
		c.send(0, fmt.Sprint("n", i), consumertest.Pay(fmt.Sprintf("n%02d", i), from, "a", "1"))
	}
	w.Serve(w.File(c.broker(), "message_id: position", "retry_refusals: true", "max_attempts: 1000"))
	w.Eventually(30*time.Second, "the 8th is retried", func() bool {
		return w.Count("select coalesce(max(attempts), 0) from inbox_messages where state = 'failed' "+
			"and message_id = 'events-0-7'") >= 3
	})
	c.send(1, "", consumertest.Pay("elsewhere", "bank", "a", "1"))
	w.Eventually(30*time.Second, "the other partition continues", func() bool {
		return w.Count("select count(*) from ledger_transfers where biz_no = 'elsewhere'") == 1
	})
	if n := w.Count("select count(*) from ledger_transfers where biz_no like 'n%'"); n != 7 {
		t.Errorf("%d of the partition took effect, not 7", n)
	}
	c.send(1, "", consumertest.Pay("money", "bank", "b", "1"))
	w.Eventually(30*time.Second, "the partition continues", func() bool {
		return w.Count("select count(*) from ledger_transfers where biz_no like 'n%'") == 20
	})
	got := w.Text("select string_agg(message_id, ' ' order by finished_at, inbox_id) from inbox_messages " +
		"where message_id like 'events-0-%'")
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint("events-0-", i))
	}
	if got != strings.Join(want, " ") {
		t.Errorf("they took effect in the order %s", got)
	}
	w.Eventually(10*time.Second, "all is committed", func() bool { return c.left() == 0 })
}

// Two members of a group: if one leaves midway the other continues, without repeating or reordering messages.
func TestRebalancesKeepOrderAndRepeatNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	w := consumertest.NewWorld(t)
	file := w.File(c.broker(), "message_id: position")
	first := w.Serve(file)
	w.Serve(file)
	const each = 60
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range each {
			for n := range mockPartitions {
				c.send(n, "", consumertest.Pay(fmt.Sprintf("p%d-%03d", n, i), "bank", "a", "0.01"))
			}
		}
	}()
	w.Eventually(30*time.Second, "some are done",
		func() bool { return w.Count("select count(*) from ledger_transfers") > each/2 })
	first.Stop()
	<-sent
	w.Serve(file)
	w.Eventually(60*time.Second, "all are done", func() bool {
		return w.Count("select count(*) from ledger_transfers") == each*int(mockPartitions) && c.left() == 0
	})
	if wrong := w.Count(`select count(*)
		from (select finished_at, lag(finished_at) over (partition by substr(message_id, 1, 8)
		order by split_part(message_id, '-', 3)::integer) as before from inbox_messages
		where message_id like 'events-%') m where finished_at < before`); wrong != 0 {
		t.Errorf("%d messages took effect out of order", wrong)
	}
}
