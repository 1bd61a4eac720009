package kafka_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os/exec"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/xdg-go/scram"
)

// mockPartitions is the mock cluster's number of partitions per topic.
const mockPartitions int32 = 4

// startMock starts librdkafka's mock cluster, which speaks Kafka's protocol, in a separate process.
func startMock(t *testing.T) (address string) {
	t.Helper()
	program, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: kcat, which has a mock Kafka cluster, is not installed (apt-get install kcat)")
	}
	// As a producer kcat reads stdin and ends with it, even if this process is killed.
	cmd := exec.Command(program, "-b", "none", "-X", "test.mock.num.brokers=1", "-X", "log_level=7", "-P", "-t", "none")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	found, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		bound := regexp.MustCompile(`Mock cluster enabled.* (127\.0\.0\.1:\d+)$`)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if m := bound.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})
	select {
	case address = <-found:
	case <-ended:
		t.Fatal("kcat ended without a mock cluster")
	case <-time.After(30 * time.Second):
		t.Fatal("kcat did not log the address of its mock cluster")
	}
	return address
}

// gate is a proxy that works around the mock cluster's gaps and bugs:
//
//   - it refuses new versions of ApiVersions in a form that clients cannot read (KIP-511);
//   - from version 4 on its ListOffsets has 8 bytes of leader epoch per partition instead of 4;
//   - a member whose SyncGroup comes after the leader's gets INVALID_REQUEST instead of its assignment;
//   - it has no passwords.
//
// The gate replaces the broker's address by its own and forwards everything else unchanged.
type gate struct {
	mock string
	port int32
	// passwords of the user "me" by mechanism; nil: no authentication.
	passwords map[string]string
	// assignments from the leaders' SyncGroup requests, by member.
	assignments sync.Map
}

func startGate(t *testing.T, passwords map[string]string) (address string) {
	t.Helper()
	mock := startMock(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	g := &gate{mock: mock, port: int32(l.Addr().(*net.TCPAddr).Port), passwords: passwords}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go g.serve(client)
		}
	}()
	return l.Addr().String()
}

// kind is the type and version of a request, which determines its response's format.
type kind struct{ key, version int16 }

// member is a member of a group in one generation.
type member struct {
	id         string
	generation int32
}

// question is a request without a response so far.
type question struct {
	kind
	syncs member // the sender, if it is a SyncGroup
}

func (g *gate) serve(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", g.mock)
	if err != nil {
		return
	}
	defer broker.Close()
	var asked sync.Map // unanswered requests by correlation id
	go func() {
		defer client.Close()
		for {
			response, err := readFrame(broker)
			if err != nil {
				return
			}
			q, _ := asked.LoadAndDelete(string(response[:4]))
			if _, err := client.Write(frame(g.rewrite(q.(question), response))); err != nil {
				return
			}
		}
	}()
	login := &login{passwords: g.passwords, done: g.passwords == nil}
	for {
		request, err := readFrame(client)
		if err != nil {
			return
		}
		k := kind{int16(binary.BigEndian.Uint16(request)), int16(binary.BigEndian.Uint16(request[2:]))}
		var own kmsg.Response
		switch apiVersions := kmsg.ApiVersions.Int16(); {
		case k.key == apiVersions && k.version > 2:
			own = tooNew()
		case k.key != apiVersions && !login.done:
			if own, err = login.answer(k, request); err != nil {
				return // like a real broker
			}
		}
		if own != nil {
			_, err = client.Write(frame(own.AppendTo(request[4:8:8])))
		} else {
			asked.Store(string(request[4:8]), question{k, g.syncs(k, request)})
			_, err = broker.Write(frame(request))
		}
		if err != nil {
			return
		}
	}
}

// tooNew is a real broker's refusal of an ApiVersions version.
func tooNew() kmsg.Response {
	r := kmsg.NewPtrApiVersionsResponse()
	r.ErrorCode = kerr.UnsupportedVersion.Code
	r.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: kmsg.ApiVersions.Int16(), MaxVersion: 2}}
	return r
}

// syncs stores the assignments in a SyncGroup and returns its sender.
func (g *gate) syncs(k kind, request []byte) member {
	r, ok := kmsg.RequestForKey(k.key).(*kmsg.SyncGroupRequest)
	if !ok {
		return member{}
	}
	r.SetVersion(k.version)
	if err := r.ReadFrom(body(request)); err != nil {
		return member{}
	}
	for _, a := range r.GroupAssignment {
		g.assignments.Store(member{a.MemberID, r.Generation}, a.MemberAssignment)
	}
	return member{r.MemberID, r.Generation}
}

// rewrite replaces the broker's address by the gate's and fixes the mock cluster's bugs. The mock cluster
// supports no versions with tagged fields here, so a response header is just its correlation id.
func (g *gate) rewrite(q question, response []byte) []byte {
	r := kmsg.ResponseForKey(q.key)
	r.SetVersion(q.version)
	switch r.(type) {
	case *kmsg.MetadataResponse, *kmsg.FindCoordinatorResponse, *kmsg.ApiVersionsResponse, *kmsg.SyncGroupResponse:
	default:
		return response
	}
	if err := r.ReadFrom(response[4:]); err != nil {
		return nil // unreadable for clients
	}
	switch r := r.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			r.Brokers[i].Port = g.port
		}
	case *kmsg.FindCoordinatorResponse:
		r.Port = g.port
	case *kmsg.SyncGroupResponse:
		if assignment, ok := g.assignments.Load(q.syncs); ok && r.ErrorCode == kerr.InvalidRequest.Code {
			r.ErrorCode, r.MemberAssignment = 0, assignment.([]byte)
		}
	case *kmsg.ApiVersionsResponse:
		for i := range r.ApiKeys {
			if r.ApiKeys[i].ApiKey == kmsg.ListOffsets.Int16() {
				r.ApiKeys[i].MaxVersion = 3
			}
		}
		if g.passwords != nil {
			r.ApiKeys = append(r.ApiKeys,
				kmsg.ApiVersionsResponseApiKey{ApiKey: kmsg.SASLHandshake.Int16(), MaxVersion: 1},
				kmsg.ApiVersionsResponseApiKey{ApiKey: kmsg.SASLAuthenticate.Int16(), MaxVersion: 1})
		}
	}
	return r.AppendTo(response[:4:4])
}

// login is the state of one connection: SaslHandshake, then SaslAuthenticate until done.
type login struct {
	passwords map[string]string
	mechanism string
	scram     *scram.ServerConversation
	done      bool
}

func (l *login) answer(k kind, frame []byte) (kmsg.Response, error) {
	r := kmsg.RequestForKey(k.key)
	r.SetVersion(k.version)
	if err := r.ReadFrom(body(frame)); err != nil {
		return nil, err
	}
	switch r := r.(type) {
	case *kmsg.SASLHandshakeRequest:
		return l.handshake(r)
	case *kmsg.SASLAuthenticateRequest:
		answer, err := l.step(string(r.SASLAuthBytes))
		response := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.SASLAuthBytes = []byte(answer)
		if err != nil {
			response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		}
		return response, nil
	}
	return nil, errors.New("a request before the login")
}

func (l *login) handshake(r *kmsg.SASLHandshakeRequest) (kmsg.Response, error) {
	l.mechanism = r.Mechanism
	if hash := map[string]scram.HashGeneratorFcn{"SCRAM-SHA-256": scram.SHA256,
		"SCRAM-SHA-512": scram.SHA512}[r.Mechanism]; hash != nil {
		client, err := hash.NewClient("me", l.passwords[r.Mechanism], "")
		if err != nil {
			return nil, err
		}
		stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: "salt of this test", Iters: 4096})
		if err != nil {
			return nil, err
		}
		server, err := hash.NewServer(func(user string) (scram.StoredCredentials, error) {
			if user != "me" {
				return scram.StoredCredentials{}, errors.New("no such user")
			}
			return stored, nil
		})
		if err != nil {
			return nil, err
		}
		l.scram = server.NewConversation()
	}
	return r.ResponseKind(), nil
}

// step processes a client message and returns the answer.
func (l *login) step(said string) (answer string, err error) {
	if l.scram != nil {
		answer, err = l.scram.Step(said)
		l.done = l.scram.Valid()
		return answer, err
	}
	l.done = l.mechanism == "PLAIN" && said == "\x00me\x00"+l.passwords["PLAIN"]
	if !l.done {
		err = errors.New("a wrong password")
	}
	return "", err
}

// body skips a request's header, which ends with the client id: no login request has tagged fields there.
func body(request []byte) []byte {
	id := 10
	if n := int16(binary.BigEndian.Uint16(request[8:])); n > 0 {
		id += int(n)
	}
	return request[id:]
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func frame(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}
