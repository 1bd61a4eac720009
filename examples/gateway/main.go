// Command gateway simulates four payment gateways, with keys of its own: Stripe, Alipay, WeChat Pay, and the generic
// one. A test or a person acts as the payer and injects faults. README.md has the details.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/alipay"
	"github.com/ledgerd/ledgerd/examples/gateway/book"
	"github.com/ledgerd/ledgerd/examples/gateway/control"
	"github.com/ledgerd/ledgerd/examples/gateway/standard"
	"github.com/ledgerd/ledgerd/examples/gateway/stripe"
	"github.com/ledgerd/ledgerd/examples/gateway/wechat"
)

// options are the flags.
type options struct {
	listen, dir, notify, tenant string
	speed                       float64
	certificates, forget        bool
}

func main() {
	o := &options{}
	flag.StringVar(&o.listen, "listen", "127.0.0.1:9200", "address to listen on; port 0: any")
	flag.StringVar(&o.dir, "dir", "gateway", "folder of keys, settings and state; created if missing")
	flag.StringVar(&o.notify, "notify-url", "http://127.0.0.1:8080", "public base URL of ledgerd, to which notices go")
	flag.StringVar(&o.tenant, "tenant", "sample", "tenant of ledgerd in the settings; ledgerd dev has sample")
	flag.Float64Var(&o.speed, "speed", 1, "factor by which the waits between attempts of a notice are shortened")
	flag.BoolVar(&o.certificates, "wechat-certificates", false, "sign as WeChat Pay by certificate, not by public key")
	flag.BoolVar(&o.forget, "forget", false, "keep no state in the folder: a restart forgets all payments")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends. It writes the settings, and then prints two lines: its URL, and the command of ledgerd
// that uses the settings.
func run(ctx context.Context, o *options, out io.Writer) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	k, err := openKeys(dir)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	mux := http.NewServeMux()
	bookCtx, stopBook := context.WithCancel(context.Background())
	defer stopBook()
	b, w, err := open(bookCtx, o, k, url, mux)
	if err != nil {
		return err
	}
	text, err := k.settings(o, url, w)
	if err != nil {
		return err
	}
	if err := k.write("pay.yaml", text); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\nledgerd serve --pay %s\n", url, k.path("pay.yaml")); err != nil {
		return err
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(os.Stderr, "", log.LstdFlags)}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = s.Close()
	}
	stopBook()
	return errors.Join(err, b.Close())
}

// open opens the book, with all gateways.
func open(ctx context.Context, o *options, k *keys, url string, mux *http.ServeMux) (*book.Book, *wechat.Keys, error) {
	ali, err := k.alipay()
	if err != nil {
		return nil, nil, err
	}
	wx, err := k.wechat()
	if err != nil {
		return nil, nil, err
	}
	forger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	st := &stripe.Gateway{Keys: k.Stripe}
	al := &alipay.Gateway{Keys: ali, Forger: forger, URL: url}
	we := &wechat.Gateway{Keys: wx, Forger: forger, Certificates: o.certificates, URL: url}
	sd := &standard.Gateway{Keys: k.Standard, URL: url}
	settings := book.Settings{File: k.path("state.jsonl"), Speed: o.speed,
		Callbacks: strings.TrimSuffix(o.notify, "/") + "/pay/callbacks"}
	if o.forget {
		settings.File = ""
	}
	b, err := book.Open(ctx, settings, st, al, we, sd)
	if err != nil {
		return nil, nil, err
	}
	st.Book, al.Book, we.Book, sd.Book = b, b, b, b
	verify := map[string]func(map[string]string) error{"wechat": func(c map[string]string) error {
		if c["code_url"] != "" || c["h5_url"] != "" {
			return nil
		}
		_, err := we.VerifyClient(c)
		return err
	}}
	(&control.Control{Book: b, Verify: verify}).Routes(mux)
	st.Routes(mux)
	al.Routes(mux)
	we.Routes(mux)
	sd.Routes(mux)
	return b, &wx, nil
}
