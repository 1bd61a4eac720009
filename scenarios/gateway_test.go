package scenarios

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// kill kills all servers at once, and starts new ones.
func (s *story) kill(*script) { s.restart() }

func (s *story) restart() {
	for _, stop := range s.stops {
		stop()
	}
	n := len(s.stops)
	s.servers, s.stops = nil, nil
	for range n {
		s.serve()
	}
}

// with makes the next call send a header: a part of the last answer.
func (s *story) with(in *script) {
	s.header[0] = in.take("the header")
	s.header[1] = at(s.answer, in.take("the path"))
}

// startGateways starts the simulator of payment gateways, and the servers with settings for it. Callbacks come to
// either server.
func (s *story) startGateways(in *script) {
	var n atomic.Int64
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		u, _ := url.Parse(s.servers[n.Add(1)%int64(len(s.servers))])
		r.SetURL(u)
	}})
	s.Cleanup(front.Close)
	dir := in.MkAbs("gateways")
	cmd := exec.Command(pgtest.Program(s, "github.com/ledgerd/ledgerd/examples/gateway"), "-listen", "127.0.0.1:0",
		"-dir", dir, "-notify-url", front.URL, "-tenant", "shop", "-speed", "10000", "-forget")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	in.Check(err)
	in.Check(cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for n := 0; n < 2 && lines.Scan(); n++ { // its URL, and the command with its settings, written by then
		if n == 0 {
			s.simulator = lines.Text()
		}
	}
	s.key(s.caller) // creates the tenant, which the settings name
	s.flags = append(s.flags, "--pay", filepath.Join(dir, "pay.yaml"))
	s.restart()
}

// gateway makes a call to the control API of the simulator.
func (s *story) gateway(in *script) {
	method, path, body := in.take("the method"), in.take("the path"), ""
	if len(in.args) > 0 {
		body = in.take("the request")
	}
	req, err := http.NewRequest(method, s.simulator+"/control/"+path, strings.NewReader(body))
	in.Check(err)
	req.Header.Set("Content-Type", "application/json")
	res, err := s.http.Do(req)
	in.Check(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", res.StatusCode, text)
	}
	in.Check(err)
	s.answer = nil
	in.Check(json.Unmarshal(text, &s.answer))
}
