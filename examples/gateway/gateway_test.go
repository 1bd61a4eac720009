package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// TestMain runs the simulator itself in processes that tests start to kill.
func TestMain(m *testing.M) {
	if os.Getenv("GATEWAY_PROGRAM") != "" {
		main()
		return
	}
	code := m.Run()
	_ = os.RemoveAll(keysDir)
	os.Exit(code)
}

// callback is a notice that the shop received.
type callback struct {
	path   string
	header http.Header
	body   []byte
}

func (c callback) form(t *testing.T) url.Values {
	t.Helper()
	v, err := url.ParseQuery(string(c.body))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// shop receives callbacks.
type shop struct {
	*http.Server
	url string

	mu     sync.Mutex
	got    []callback
	answer func(c callback, n int) (int, string) // n: number of callbacks before this one
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{answer: func(callback, int) (int, string) { return http.StatusOK, "success" }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	s.Server = &http.Server{Handler: s, ReadHeaderTimeout: time.Second}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c := callback{r.URL.Path, r.Header, body}
	s.mu.Lock()
	n := len(s.got)
	s.got = append(s.got, c)
	answer := s.answer
	s.mu.Unlock()
	status, text := answer(c, n)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

func (s *shop) answers(f func(c callback, n int) (int, string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

func (s *shop) callbacks() []callback {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]callback(nil), s.got...)
}

// vendor is a running simulator.
type vendor struct {
	t        *testing.T
	url, dir string
	keys     *keys
	shop     *shop
}

// newVendor runs a simulator in this process, whose notices are repeated 100,000 times faster.
func newVendor(t *testing.T, flags ...string) *vendor {
	t.Helper()
	v := &vendor{t: t, dir: t.TempDir(), shop: newShop(t)}
	copyKeys(t, v.dir)
	o := &options{listen: "127.0.0.1:0", dir: v.dir, notify: v.shop.url, tenant: "shop", speed: 1e5}
	for _, f := range flags {
		o.certificates = o.certificates || f == "certificates"
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	out, in := io.Pipe()
	go func() {
		err := run(ctx, o, in)
		_ = in.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	v.ready(out)
	return v
}

var (
	keysOnce sync.Once
	keysDir  string
)

// copyKeys copies the keys of this run to a folder, because generating RSA keys is slow.
func copyKeys(t *testing.T, dir string) {
	t.Helper()
	keysOnce.Do(func() {
		made, err := os.MkdirTemp("", "gateway-keys")
		if err != nil {
			t.Fatal(err)
		}
		keysDir = made
		k, err := openKeys(keysDir)
		if err == nil {
			_, err = k.alipay()
		}
		if err == nil {
			_, err = k.wechat()
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if err := os.CopyFS(dir, os.DirFS(keysDir)); err != nil {
		t.Fatal(err)
	}
}

// ready reads the URL from the simulator's output.
func (v *vendor) ready(out io.Reader) {
	v.t.Helper()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err == nil {
		v.url = strings.TrimSpace(line)
		_, err = lines.ReadString('\n')
	}
	if err == nil {
		v.keys, err = openKeys(v.dir)
	}
	if err != nil {
		v.t.Fatal(err)
	}
}

type response struct {
	*http.Response
	body []byte
}

func (r *response) json(t *testing.T) map[string]any {
	t.Helper()
	m := map[string]any{}
	if err := json.Unmarshal(r.body, &m); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return m
}

// do makes a request on a new connection, because net/http retries some requests on reused ones.
func (v *vendor) do(method, path, body string, header http.Header) (*response, error) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.url+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header = header.Clone()
	r.Close = true
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	return &response{a, text}, err
}

func (v *vendor) must(method, path, body string, header http.Header) *response {
	v.t.Helper()
	a, err := v.do(method, path, body, header)
	if err != nil {
		v.t.Fatal(err)
	}
	return a
}

// tell calls the control API, and decodes the answer.
func tell[T any](v *vendor, method, path string, body any) (answer T) {
	v.t.Helper()
	text := []byte(nil)
	if body != nil {
		text, _ = json.Marshal(body)
	}
	a := v.must(method, "/control/"+path, string(text), http.Header{"Content-Type": {"application/json"}})
	if a.StatusCode != http.StatusOK {
		v.t.Fatalf("%s %s: %d %s", method, path, a.StatusCode, a.body)
	}
	if err := json.Unmarshal(a.body, &answer); err != nil {
		v.t.Fatal(err)
	}
	return answer
}

func (v *vendor) act(gateway, number, do string) *book.Payment {
	v.t.Helper()
	return tell[*book.Payment](v, "POST", "payments/"+gateway+"/"+number, book.Act{Do: do})
}

func (v *vendor) plan(number string, p book.Plan) {
	v.t.Helper()
	tell[book.Plan](v, "PUT", "plans/"+number, p)
}

func (v *vendor) quiet() {
	v.t.Helper()
	tell[map[string]bool](v, "GET", "quiet?timeout=20s", nil)
}

func (v *vendor) totals() *book.Totals {
	v.t.Helper()
	return tell[*book.Totals](v, "GET", "totals", nil)
}

// money returns the amounts taken and given back for a number, according to the gateway.
func (v *vendor) money(gateway, number, currency string) string {
	v.t.Helper()
	n := v.totals().Numbers[gateway+"/"+number][currency]
	if n == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s-%s in %d", n.Taken, n.GivenBack, n.Moved)
}

// openssl reports whether a signature is valid, by a public key or a certificate. It is an independent implementation.
func (v *vendor) openssl(keyFile string, text, signature []byte) bool {
	v.t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		v.t.Skip("SKIPPED, NOT TESTED: openssl is not installed")
	}
	key := filepath.Join(v.dir, keyFile)
	if strings.HasSuffix(keyFile, "_cert.pem") {
		public, err := exec.Command("openssl", "x509", "-in", key, "-pubkey", "-noout").Output()
		if err != nil {
			v.t.Fatal(err)
		}
		key = filepath.Join(v.t.TempDir(), "public.pem")
		if err := os.WriteFile(key, public, 0o600); err != nil {
			v.t.Fatal(err)
		}
	}
	file := filepath.Join(v.t.TempDir(), "signature")
	if err := os.WriteFile(file, signature, 0o600); err != nil {
		v.t.Fatal(err)
	}
	c := exec.Command("openssl", "dgst", "-sha256", "-verify", key, "-signature", file)
	c.Stdin = bytes.NewReader(text)
	return c.Run() == nil
}

// opensslSign signs with a private key.
func (v *vendor) opensslSign(keyFile, text string) []byte {
	v.t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		v.t.Skip("SKIPPED, NOT TESTED: openssl is not installed")
	}
	c := exec.Command("openssl", "dgst", "-sha256", "-sign", filepath.Join(v.dir, keyFile))
	c.Stdin = strings.NewReader(text)
	out, err := c.Output()
	if err != nil {
		v.t.Fatal(err)
	}
	return out
}
