package rabbitmq_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/ledgerd/ledgerd/internal/consumer/consumertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// program is Debian's path of the server itself; the wrapper in PATH insists on root.
const program = "/usr/lib/rabbitmq/bin/rabbitmq-server"

func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	url := startServer(t)
	t.Run("messages take effect once", func(t *testing.T) {
		t.Parallel()
		consumertest.EffectsOnce(t, queueOf(url, "effects"))
	})
	t.Run("a killed consumer loses and repeats nothing", func(t *testing.T) {
		t.Parallel()
		consumertest.Killed(t, queueOf(url, "killed"), 1000, 8)
	})
}

// startServer starts a server with its own directories and ports, never as root.
func startServer(t *testing.T) (url string) {
	t.Helper()
	epmd, err := exec.LookPath("epmd")
	if _, missing := os.Stat(program); missing != nil || err != nil {
		t.Skip("SKIPPED, NOT TESTED: RabbitMQ is not installed (apt-get install rabbitmq-server)")
	}
	dir, err := os.MkdirTemp("", "ledgerd-rabbitmq-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	port, distPort, epmdPort := freePort(t), freePort(t), freePort(t)
	config := filepath.Join(dir, "rabbitmq.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, "listeners.tcp.1 = 127.0.0.1:%d\nlog.file.level = warning\n", port),
		0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "enabled_plugins"), []byte("[].\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "ERL_EPMD_PORT=" +
		strconv.Itoa(epmdPort), "ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODENAME=ledgerd%d@localhost", port), "RABBITMQ_DIST_PORT=" + strconv.Itoa(distPort),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"), "RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"),
		"RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"), "RABBITMQ_CONFIG_FILE=" + config, "RABBITMQ_CONF_ENV_FILE=" +
			filepath.Join(dir, "none"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"}
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		attributes.Credential = ordinaryUser(t, dir)
	}
	for _, args := range [][]string{{epmd, "-port", strconv.Itoa(epmdPort)}, {program}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env, cmd.Dir, cmd.SysProcAttr = env, dir, attributes
		out, err := os.Create(filepath.Join(dir, filepath.Base(args[0])+".out"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
			_ = out.Close()
		})
	}
	url = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port)
	awaitServer(t, url, dir)
	return url
}

// ordinaryUser is the server's account if the tests run as root; it gets to own the directory.
func ordinaryUser(t *testing.T, dir string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("rabbitmq") // created by the package
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			t.Fatal(err)
		}
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, file := range append(files, dir) {
		if err := os.Chown(file, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func awaitServer(t *testing.T, url, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	for {
		conn, err := amqp.Dial(url)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ctx.Done():
			out, _ := os.ReadFile(filepath.Join(dir, "rabbitmq-server.out"))
			t.Fatalf("RabbitMQ does not start: %v\n%s", err, out)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// queueOf makes a durable queue.
func queueOf(url, queue string) func(t *testing.T) consumertest.Broker {
	return func(t *testing.T) consumertest.Broker {
		conn, err := amqp.Dial(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		sender, err := conn.Channel()
		if err == nil {
			err = sender.Confirm(false)
		}
		if err != nil {
			t.Fatal(err)
		}
		looker, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := looker.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		return consumertest.Broker{
			Settings: []string{"broker: rabbitmq", "url: " + url, "queue: " + queue},
			Send: func(id, body string) {
				m := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
				if id != "" {
					m.Headers = amqp.Table{consumertest.IDHeader: id}
				}
				confirmed, err := sender.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, false,
					false, m)
				if err != nil || !confirmed.Wait() {
					t.Errorf("publish: %v", err)
				}
			},
			// Closing the connection makes unacknowledged messages visible.
			Left: func() int {
				q, err := looker.QueueDeclarePassive(queue, true, false, false, false, nil)
				if err != nil {
					t.Error(err)
				}
				return q.Messages
			},
		}
	}
}
