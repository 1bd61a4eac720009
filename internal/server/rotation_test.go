package server_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// masters returns the keys of a secrets file.
func masters(t *testing.T, keys ...string) *secret.Master {
	t.Helper()
	m, err := secret.Parse(strings.Join(keys, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newMaster() string {
	b := make([]byte, secret.Size)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// rotation is two servers on one database, each with a secrets file of its own.
type rotation struct {
	*servertest.Caller
	servers [2]*servertest.Caller
}

// restart starts a server with other keys.
func (r *rotation) restart(n int, keys ...string) {
	r.T.Helper()
	if r.servers[n] != nil {
		r.servers[n].Server.Stop()
	}
	started, err := server.Start(context.Background(), server.Options{DatabaseURL: r.DB.AppDSN, Listen: "127.0.0.1:0",
		Secret: masters(r.T.(*testing.T), keys...), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(started.Stop)
	site := *r.Site
	site.Server, site.Base = started, "http://"+started.Addr()
	r.servers[n] = &servertest.Caller{Site: &site, APIKey: r.APIKey}
}

// send sends a code at a server.
func (r *rotation) send(n int, number string) servertest.Answer {
	return r.servers[n].Call(servertest.ConnectJSON, "Notify.SendCode",
		&notifyv1.SendCodeRequest{Type: "login", Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: number})
}

func (r *rotation) secrets(n int) string {
	res := new(notifyv1.GetSecretResponse)
	r.servers[n].OK("Webhook.GetSecret", &notifyv1.GetSecretRequest{Name: "shop"}, res)
	return fmt.Sprint(res.GetSecrets())
}

// While the master key is replaced, servers with the old file, with both keys in either order, and with the new file
// alone derive the same keys: limits of codes do not begin anew, fingerprints recognise repeats, and receivers of
// webhooks need no new secret.
func TestMasterKeyIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	s.Server.Stop()
	if _, err := s.Pool.Exec(t.Context(), "delete from secret_roots"); err != nil { // of a server with other keys
		t.Fatal(err)
	}
	r := &rotation{Caller: &servertest.Caller{Site: s, APIKey: s.Key("mine", "boss", access.Admin)}}
	older, newer := newMaster(), newMaster()
	r.restart(0, older)
	r.restart(1, older)
	r.servers[0].OK("Webhook.CreateEndpoint",
		&notifyv1.CreateEndpointRequest{Name: "shop", Url: "https://shop.example.com"},
		new(notifyv1.CreateEndpointResponse))
	before := r.secrets(0)
	const steady = "+8613900000000"
	if a := r.send(0, steady); a.Code != "" {
		t.Fatalf("%+v", a)
	}
	first := new(notifyv1.SendResponse)
	r.servers[0].OK("Notify.Send", text(), first)

	var sent atomic.Int64
	step := func(what string) {
		t.Helper()
		for n := range r.servers {
			if got := r.secrets(n); got != before {
				t.Errorf("%s: server %d has the webhook secrets %s, not %s", what, n, got, before)
			}
			if a := r.send(n, steady); a.Reason(t) != "CODE_TOO_SOON" {
				t.Errorf("%s: server %d forgot the code: %+v", what, n, a)
			}
			again := new(notifyv1.SendResponse)
			r.servers[n].OK("Notify.Send", text(), again)
			if again.GetMessage().GetId() != first.GetMessage().GetId() {
				t.Errorf("%s: server %d sends a repeat", what, n)
			}
		}
	}
	super := pgtest.Pool(t, s.DB.SuperDSN)
	reseal := func(keys ...string) {
		t.Helper()
		if _, err := secret.Reseal(t.Context(), super, masters(t, keys...)); err != nil {
			t.Error(err)
		}
	}
	// load sends codes at a server while the step runs.
	load := func(n int, step func()) {
		t.Helper()
		done, ended := make(chan struct{}), sync.WaitGroup{}
		at := *r.servers[n]
		ended.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					if i > 20 {
						return
					}
				default:
				}
				number := fmt.Sprintf("+86138%08d", sent.Add(1))
				if a := at.Call(servertest.ConnectJSON, "Notify.SendCode", &notifyv1.SendCodeRequest{Type: "login",
					Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: number}); a.Code != "" &&
					a.Reason(t) != "NOTIFY_LIMITED" {
					t.Errorf("%s: %+v", number, a)
				}
			}
		})
		step()
		close(done)
		ended.Wait()
	}
	load(1, func() { r.restart(0, newer, older) })
	step("the first server has both keys")
	load(0, func() { r.restart(1, older, newer) })
	step("the second server has both keys in the old order")
	load(0, func() { reseal(newer, older) })
	step("resealed with the new key")
	load(1, func() { reseal(older, newer); reseal(newer, older) })
	load(1, func() { r.restart(0, newer) })
	load(0, func() { r.restart(1, newer) })
	step("the old key is removed")
	if sealing, err := secret.Check(t.Context(), super, masters(t, newer)); err != nil || !sealing.Newest {
		t.Errorf("%+v, %v", sealing, err)
	}
	_, err := server.Start(t.Context(), server.Options{DatabaseURL: s.DB.AppDSN, Listen: "127.0.0.1:0",
		Secret: masters(t, older)})
	if id := masters(t, newer).IDs()[0]; err == nil || !strings.Contains(err.Error(), "needs the master key "+id) {
		t.Errorf("a server without the key: %v", err)
	}
}
