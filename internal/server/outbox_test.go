package server_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// At shutdown, a hanging attempt and an incomplete call share the drain timeout.
func TestAttemptsAndCallsShareTheDrainTimeout(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	asked := make(chan bool, 1)
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- true
		<-r.Context().Done()
	}))
	defer hangs.Close()
	name := filepath.Join(t.TempDir(), "notify.yaml")
	file := "sms: [{kind: http, url: '" + hangs.URL + "', json: {to: '{recipient}'}, allow_http: true}]"
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := provider.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s.Server.Stop()
	const drain = 3 * time.Second
	s.Start(server.Options{Notify: f, DrainTimeout: drain})
	c.OK("Notify.Send", text(),
		new(notifyv1.SendResponse))
	<-asked
	call, err := net.Dial("tcp", strings.TrimPrefix(s.Base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer call.Close()
	if _, err := io.WriteString(call, "POST /ledgerd.notify.v1.NotifyService/Send HTTP/1.1\r\nHost: "+
		"localhost\r\nContent-Length: 100\r\n"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	s.Server.Stop()
	if took := time.Since(begun); took < drain*9/10 || took > 3*drain {
		t.Errorf("it took %v", took)
	}
	if n := s.Count("select count(*) from notify_queue where state = 'unknown'"); n != 1 {
		t.Errorf("%d are unknown", n)
	}
}

func TestUnknownTenantOfAProviderIsAnError(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	name := filepath.Join(t.TempDir(), "notify.yaml")
	if err := os.WriteFile(name, []byte("email: [{kind: file, tenants: [nobody]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := provider.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	started, err := server.Start(t.Context(),
		server.Options{DatabaseURL: s.DB.AppDSN, Listen: "127.0.0.1:0", Secret: servertest.Secret, Notify: f})
	if err == nil || !strings.Contains(err.Error(), "email[0], line 1: tenant nobody: TENANT_NOT_FOUND") {
		t.Errorf("%v", err)
	}
	if err == nil {
		started.Stop()
	}
}

func text() *notifyv1.SendRequest {
	return &notifyv1.SendRequest{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678",
		BusinessType: "order.paid",
		Says:         &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "It is paid."}}}
}
