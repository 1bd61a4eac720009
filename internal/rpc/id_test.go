package rpc_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

func generate(c *caller, r *idv1.GenerateRequest) *idv1.GenerateResponse {
	c.T.Helper()
	return ok(c, "Id.Generate", r, new(idv1.GenerateResponse))
}

func parse(c *caller, id string) *idv1.ParseResponse {
	c.T.Helper()
	return ok(c, "Id.Parse", &idv1.ParseRequest{Id: id}, new(idv1.ParseResponse))
}

const (
	snowflake = idv1.IdKind_ID_KIND_SNOWFLAKE
	uuidV7    = idv1.IdKind_ID_KIND_UUID_V7
	orderNo   = idv1.IdKind_ID_KIND_ORDER_NO
)

func TestParseReturnsGeneratedIDs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for _, kind := range []idv1.IdKind{0, snowflake} {
		made := generate(c, &idv1.GenerateRequest{Kind: kind, Count: 3})
		if len(made.GetIds()) != 3 || len(made.GetTexts()) != 3 || !slices.IsSorted(made.GetIds()) ||
			!slices.IsSorted(made.GetTexts()) {
			t.Fatal(made)
		}
		// JSON has the numbers as strings, which Parse accepts.
		var digits []string
		for _, quoted := range regexp.MustCompile(`"\d{15,}"`).FindAllString(protojson.Format(made), -1) {
			digits = append(digits, strings.Trim(quoted, `"`))
		}
		if len(digits) != 3 {
			t.Fatalf("%s", protojson.Format(made))
		}
		for i, text := range made.GetTexts() {
			p := parse(c, text)
			if p.GetKind() != snowflake || p.GetId() != made.GetIds()[i] || p.Worker == nil || p.Sequence == nil ||
				time.Since(p.GetTime().AsTime()).Abs() > time.Minute || !proto.Equal(p, parse(c, digits[i])) {
				t.Errorf("%s: %v", text, p)
			}
		}
	}
	for _, id := range generate(c, &idv1.GenerateRequest{Kind: uuidV7, Count: 3}).GetTexts() {
		if p := parse(c, id); p.GetKind() != uuidV7 || p.Id != nil || p.Worker != nil || p.GetText() != id {
			t.Errorf("%s: %v", id, p)
		}
	}
	for _, no := range generate(c, &idv1.GenerateRequest{Kind: orderNo, Count: 3, Prefix: "ORDER123",
		TimeZone: "Asia/Shanghai"}).GetTexts() {
		p := parse(c, no)
		zone := time.FixedZone("", 8*3600)
		if p.GetKind() != orderNo || p.GetPrefix() != "ORDER123" ||
			p.GetDate() != p.GetTime().AsTime().In(zone).Format("20060102") || p.GetText() != no || len(no) > 32 ||
			p.Id == nil {
			t.Errorf("%s: %v", no, p)
		}
	}
	if made := generate(c, &idv1.GenerateRequest{}); len(made.GetIds()) != 1 {
		t.Errorf("one by default: %v", made)
	}
}

func TestBadRequestsForIDsNameTheField(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for want, bad := range map[string][]proto.Message{
		"kind":  {&idv1.GenerateRequest{Kind: 9}},
		"count": {&idv1.GenerateRequest{Count: -1}, &idv1.GenerateRequest{Count: 100_001}},
		"prefix": {&idv1.GenerateRequest{Prefix: "A"}, &idv1.GenerateRequest{Kind: uuidV7, Prefix: "A"},
			&idv1.GenerateRequest{Kind: orderNo, Prefix: "a"},
			&idv1.GenerateRequest{Kind: orderNo, Prefix: "ABCDEFGHI"}},
		"timeZone": {&idv1.GenerateRequest{TimeZone: "UTC"}, &idv1.GenerateRequest{Kind: orderNo, TimeZone: "Mars"}},
		"id": {&idv1.ParseRequest{}, &idv1.ParseRequest{Id: "order-1"},
			&idv1.ParseRequest{Id: strings.Repeat("1", 65)}},
	} {
		for _, r := range bad {
			name := "Id.Generate"
			if want == "id" {
				name = "Id.Parse"
			}
			a := c.call(connectJSON, name, r)
			if a.Code != "invalid_argument" || !strings.Contains(string(a.Raw), `"field":"`+want+`"`) &&
				!strings.Contains(a.Message, want) {
				t.Errorf("%v: %s %s", r, a.Code, a.Raw)
			}
		}
	}
	if a := c.call(connectJSON, "Id.Parse", &idv1.ParseRequest{Id: "order-1"}); a.Reason(t) != "ID_INVALID" {
		t.Errorf("%s", a.Raw)
	}
}

// Two servers concurrently, and a later one, generate the maximum of a call. Each caller is a principal of its own:
// more than two such calls of one principal wait for each other.
func TestManyIDsOfTwoServers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	d := c.second()
	var mu sync.Mutex
	seen, workers := map[string]bool{}, map[int64]bool{}
	take := func(c *caller, kind idv1.IdKind) {
		made := generate(c, &idv1.GenerateRequest{Kind: kind, Count: 100_000})
		mu.Lock()
		defer mu.Unlock()
		if len(made.GetTexts()) != 100_000 || !slices.IsSorted(made.GetTexts()) {
			t.Errorf("%d of %v", len(made.GetTexts()), kind)
		}
		for _, text := range made.GetTexts() {
			if seen[text] {
				t.Fatalf("%s twice", text)
			}
			seen[text] = true
		}
		for _, id := range made.GetIds() {
			workers[id>>12&1023] = true
		}
	}
	var wg sync.WaitGroup
	for i, kind := range []idv1.IdKind{snowflake, snowflake, orderNo, uuidV7} {
		key := s.Key("mine", fmt.Sprintf("caller-%d", i), access.Admin)
		wg.Go(func() { take(&caller{c.site, key}, kind) })
		wg.Go(func() { take(&caller{d.site, key}, kind) })
	}
	wg.Wait()
	if len(workers) != 2 {
		t.Errorf("%d workers", len(workers))
	}
	held := func() int { return s.Count("select count(*) from audit.id_workers where held") }
	if held() != 2 {
		t.Errorf("%d numbers are held", held())
	}
	s.Server.Stop()
	d.Server.Stop()
	if held() != 0 {
		t.Errorf("after shutdown %d numbers are held", held())
	}
	s.Start(server.Options{})
	take(c, snowflake)
}

func TestServerLeasesAWorkerNumberWithItsFirstID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	leased := func() int { return s.Count("select count(*) from ids_workers where fence > 0") }
	generate(c, &idv1.GenerateRequest{Kind: uuidV7})
	if leased() != 0 {
		t.Error("UUIDs need a number")
	}
	if _, err := s.Pool.Exec(t.Context(),
		"update ids_workers set fence = 1, holder = 'other', lease_expires_at = now() + '1 hour'"); err != nil {
		t.Fatal(err)
	}
	a := c.call(connectJSON, "Id.Generate", &idv1.GenerateRequest{})
	if a.Code != "resource_exhausted" || a.Reason(t) != "ID_WORKERS_EXHAUSTED" ||
		!strings.Contains(string(a.Raw), "RetryInfo") {
		t.Errorf("all numbers are held: %s", a.Raw)
	}
	if _, err := s.Pool.Exec(t.Context(), "update ids_workers set lease_expires_at = now() "+
		"where worker = 77"); err != nil {
		t.Fatal(err)
	}
	if p := parse(c, generate(c, &idv1.GenerateRequest{}).GetTexts()[0]); p.GetWorker() != 77 {
		t.Errorf("%v", p)
	}
	var renewed time.Time
	read := func() (at time.Time) {
		if err := s.Pool.QueryRow(t.Context(),
			"select lease_expires_at from ids_workers where worker = 77").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	renewed = read()
	eventually(t, 20*time.Second, "the lease is renewed", func() bool { return read().After(renewed) })
	req, _ := http.NewRequest(http.MethodGet, s.Base+"/metrics", nil)
	req.Header.Set("Authorization", "Bearer "+s.watcher())
	res, err := servertest.HTTP1.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var text strings.Builder
	if _, err := io.Copy(&text, res.Body); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ledgerd_ids_made_total{kind="uuid_v7"} 1`,
		`ledgerd_ids_made_total{kind="snowflake"} 1`, `ledgerd_ids_worker 77`,
		`ledgerd_ids_leases_total{outcome="exhausted"} 1`, `ledgerd_ids_clock_offset_seconds{clock="wall"} `,
		`ledgerd_ids_clock_offset_seconds{clock="ids"} `, `ledgerd_ids_left_seconds 2`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
}
