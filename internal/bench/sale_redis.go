package bench

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1/salev1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
	"github.com/ledgerd/ledgerd/internal/server"
)

// The design with Redis that ledgerd is compared with, as good as it gets: one script decides atomically, so that no
// buyer wins twice and no unit is sold twice. The append-only file is synced every second. Two workers insert the
// winners' orders into Postgres.

//go:embed sql/grab.lua
var grabScript string

// redisConn is a connection to Redis.
type redisConn struct {
	net.Conn
	r *bufio.Reader
}

func dialRedis(address string) (*redisConn, error) {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &redisConn{c, bufio.NewReader(c)}, nil
}

// do sends a command, and returns the texts of its answer.
func (c *redisConn) do(words ...string) ([]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	return c.answer()
}

func (c *redisConn) answer() ([]string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, text := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '+', ':':
		return []string{text}, nil
	case '-':
		return nil, errors.New(text)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return nil, err
	}
	if kind == '$' {
		b := make([]byte, n+2)
		_, err := io.ReadFull(c.r, b)
		return []string{string(b[:n])}, err
	}
	var all []string
	for range n {
		x, err := c.answer()
		if err != nil {
			return nil, err
		}
		all = append(all, x...)
	}
	return all, nil
}

// grab asks for a unit.
func (c *redisConn) grab(script, name, buyer string) (told, error) {
	x, err := c.do("EVALSHA", script, "3", name+":left", name+":orders", name+":won", buyer)
	if err != nil || len(x) != 2 {
		return told{}, fmt.Errorf("%v: %w", x, err)
	}
	return told{x[0] != "0", x[1]}, nil
}

// redisServer is a running Redis, with a server in front of it.
type redisServer struct {
	bench   *saleBench
	process *child
	address string
	script  string
	front   *child
	url     string
}

func (b *saleBench) startRedis(ctx context.Context) (*redisServer, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "redis")
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	s := &redisServer{bench: b, address: address}
	s.process, err = startChild(b.options.Redis, []string{"--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", ""}, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// open waits for Redis, stores the script, and starts the server in front.
func (s *redisServer) open(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); ; <-tick.C {
		c, err := dialRedis(s.address)
		if err == nil {
			var x []string
			if x, err = c.do("SCRIPT", "LOAD", grabScript); err == nil {
				s.script = x[0]
			}
			_ = c.Close()
		}
		if err == nil {
			break
		}
		if time.Since(begin) > startPatience {
			return err
		}
	}
	if _, err := s.bench.conn.Exec(ctx, sql("sale_redis")); err != nil {
		return err
	}
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	s.url = "http://" + listen
	s.front, err = startChild(s.bench.options.Program, []string{"bench-redis", "--listen", listen, "--redis", s.address,
		"--script", s.script}, []string{"DATABASE_URL=" + s.bench.url}, nil, nil)
	if err != nil {
		return err
	}
	return (&service{child: s.front, url: s.url}).waitReady(ctx)
}

func (s *redisServer) stop() {
	for _, c := range []*child{s.front, s.process} {
		if c != nil {
			c.stop(stopPatience)
		}
	}
}

// sell stores the number of units, and starts two workers that insert orders.
func (s *redisServer) sell(ctx context.Context, name string) (done func(context.Context) (int, error), stop func(),
	err error) {
	c, err := dialRedis(s.address)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if _, err := c.do("SET", name+":left", strconv.Itoa(s.bench.options.Units)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			if err := s.insert(ctx, name); err != nil && ctx.Err() == nil {
				s.bench.progress("a worker of Redis: %v", err)
			}
		})
	}
	return func(ctx context.Context) (n int, err error) {
			err = s.bench.conn.QueryRow(ctx, sql("sale_redis_orders"), s.bench.tenant, name).Scan(&n)
			return n, err
		}, func() {
			cancel()
			workers.Wait()
		}, nil
}

// insert inserts winners' orders into Postgres, up to 1,000 in a statement.
func (s *redisServer) insert(ctx context.Context, name string) error {
	c, err := dialRedis(s.address)
	if err != nil {
		return err
	}
	defer c.Close()
	for ctx.Err() == nil {
		first, err := c.do("BLPOP", name+":won", "1")
		if err != nil {
			return err
		}
		if len(first) == 0 {
			continue
		}
		rest, err := c.do("LPOP", name+":won", "999")
		if err != nil {
			return err
		}
		var numbers, buyers []string
		for _, x := range append(first[1:], rest...) {
			buyer, no, _ := strings.Cut(x, " ")
			buyers, numbers = append(buyers, buyer), append(numbers, no)
		}
		if _, err := s.bench.pool.Exec(ctx, sql("sale_redis_insert"), s.bench.tenant, name, numbers,
			buyers); err != nil {
			return err
		}
	}
	return nil
}

// direct lets each caller ask Redis on its own connection.
func (s *redisServer) direct(ctx context.Context, name string) (counter, error) {
	done, stop, err := s.sell(ctx, name)
	return counter{most: 1, done: done, close: stop,
		caller: func() (func([]string) ([]told, error), func(), error) {
			c, err := dialRedis(s.address)
			if err != nil {
				return nil, nil, err
			}
			return func(buyers []string) ([]told, error) {
				x, err := c.grab(s.script, name, buyers[0])
				return []told{x}, err
			}, func() { _ = c.Close() }, nil
		}}, err
}

// behindServer lets callers ask the server in front of Redis.
func (s *redisServer) behindServer(ctx context.Context, name string) (counter, error) {
	done, stop, err := s.sell(ctx, name)
	return counter{most: 1, done: done, close: stop, caller: connectCaller(s.url, s.bench.apiKey, name, 1)}, err
}

// redisSale serves Grab of SaleService from Redis.
type redisSale struct {
	salev1connect.UnimplementedSaleServiceHandler
	address, script string
	idle            chan *redisConn
}

// Grab asks on a connection of its own.
func (s *redisSale) Grab(_ context.Context, r *salev1.GrabRequest) (*salev1.GrabResponse, error) {
	var c *redisConn
	var err error
	select {
	case c = <-s.idle:
	default:
		if c, err = dialRedis(s.address); err != nil {
			return nil, err
		}
	}
	x, err := c.grab(s.script, r.GetSale(), r.GetGrab().GetBuyer())
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	select {
	case s.idle <- c:
	default:
		_ = c.Close()
	}
	if !x.won {
		return &salev1.GrabResponse{Outcome: salev1.Outcome_OUTCOME_SOLD_OUT}, nil
	}
	return &salev1.GrabResponse{Outcome: salev1.Outcome_OUTCOME_WON, OrderNo: x.orderNo}, nil
}

// ServeRedis serves SaleService in front of Redis as ledgerd serves its own, until the context ends: over the same HTTP
// server, for callers with an API key of the database.
func ServeRedis(ctx context.Context, listen, redis, script, databaseURL string) error {
	keys, err := pg.OpenReads(ctx, databaseURL, 1)
	if err != nil {
		return err
	}
	defer keys.Close()
	gate := &rpc.Gate{Log: slog.New(slog.DiscardHandler), Metrics: rpc.NewMetrics(prometheus.NewRegistry()),
		Authenticate: access.NewKeys(keys).Authenticate}
	mux := http.NewServeMux()
	mux.Handle(rpc.Supported(salev1connect.NewSaleServiceHandler(
		&redisSale{address: redis, script: script, idle: make(chan *redisConn, 1024)}, gate.Options()...)))
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	return server.Serve(ctx, listen, mux)
}
