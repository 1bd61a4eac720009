package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is a Redis of our own, which writes its log to disk every second, as it is mostly run.
type redisServer struct {
	*child
	client *redis.Client
}

func startRedis(ctx context.Context, program, dir string, connections int) (*redisServer, string, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	dir = filepath.Join(dir, "redis")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, "", err
	}
	_, port, _ := strings.Cut(address, ":")
	s := &redisServer{}
	if s.child, err = startChild(program,
		[]string{"--bind", "127.0.0.1", "--port", port, "--appendonly", "yes", "--appendfsync", "everysec",
			"--save", "", "--dir", dir}, nil, nil, nil); err != nil {
		return nil, "", err
	}
	s.client = redis.NewClient(&redis.Options{Addr: address, PoolSize: connections, MinIdleConns: connections})
	version, err := s.ready(ctx)
	if err != nil {
		s.close()
		return nil, "", fmt.Errorf("redis did not start: %w", errors.Join(err, errors.New(s.tail.String())))
	}
	return s, version, nil
}

func (s *redisServer) ready(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		info, err := s.client.Info(ctx, "server").Result()
		if err == nil {
			_, version, _ = strings.Cut(info, "redis_version:")
			version, _, _ = strings.Cut(version, "\r")
			return version, nil
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-s.done:
			return "", s.died()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *redisServer) close() {
	_ = s.client.Close()
	s.stop(5 * time.Second)
}

// findRedis is the program, or empty.
func findRedis(program string) string {
	if program == "" {
		program = "redis-server"
	}
	found, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	return found
}

// setNX claims a key in Redis: what most do who do not ask a database.
func setNX(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, run string, caller, n int) error {
		set, err := b.redis.client.SetNX(ctx, "page:"+name(run, caller, n), "owner", 10*time.Minute).Result()
		if err == nil && !set {
			err = errors.New("redis: a new key was there")
		}
		return err
	}, nil
}
