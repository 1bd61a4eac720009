package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// request is a call in a script.
type request struct {
	path, body string
}

// request reads the name of a method and its request: JSON, or @ and a file of the script.
func (s *script) request() request {
	service, method, ok := strings.Cut(s.take("the method"), "/")
	if !ok {
		s.Fatalf("not a method, such as StockService/Deduct: %s", service)
	}
	body := s.take("the request")
	if file, ok := strings.CutPrefix(body, "@"); ok {
		body = s.ReadFile(file)
	}
	pkg := strings.ToLower(strings.TrimSuffix(service, "Service"))
	return request{fmt.Sprintf("/ledgerd.%s.v1.%s/%s", pkg, service, method), body}
}

// refusal is the part of an error answer that scripts can read.
type refusal struct {
	reason, step string
	shown        map[string]any
}

// send makes a call, and repeats it if its connection breaks, because a thousand connections may be opened at once.
func (s *story) send(n int, key string, r request) (answer map[string]any, refused *refusal, err error) {
	for range 5 {
		if answer, refused, err = s.try(n, key, r); !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	return answer, refused, err
}

// try makes a call like curl. refused is nil if it succeeds.
func (s *story) try(n int, key string, r request) (answer map[string]any, refused *refusal, err error) {
	req, err := http.NewRequest(http.MethodPost, s.servers[n%len(s.servers)]+r.path, strings.NewReader(r.body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	if s.header[0] != "" {
		req.Header.Set(s.header[0], s.header[1])
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		refused, err = readRefusal(body)
	} else if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer, refused, err
}

func readRefusal(body []byte) (*refusal, error) {
	var e struct {
		Message string
		Details []struct {
			Debug struct {
				Reason, Class, NextStep string
				Metadata                map[string]any
			}
		}
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, fmt.Errorf("%w in %q", err, body)
	}
	r := &refusal{shown: map[string]any{"message": e.Message}}
	for _, d := range e.Details {
		if d.Debug.Reason != "" {
			r.reason, r.shown["state"] = d.Debug.Reason, d.Debug.Metadata
		}
		if d.Debug.Class != "" {
			r.step, r.shown["class"] = d.Debug.NextStep, d.Debug.Class
		}
	}
	if r.reason == "" {
		return nil, fmt.Errorf("no reason in %q", body)
	}
	return r, nil
}

// as makes the next calls those of another principal.
func (s *story) as(in *script) { s.caller = in.take("the principal") }

func (s *story) call(in *script) {
	answer, refused, err := s.one(in.request())
	in.Check(err)
	if refused != nil {
		in.Fatalf("refused: %s %v", refused.reason, refused.shown)
	}
	s.answer = answer
}

func (s *story) callRefused(in *script) {
	reason := in.take("the reason")
	answer, refused, err := s.one(in.request())
	in.Check(err)
	if refused == nil {
		in.Fatalf("succeeded: %v", answer)
	}
	if refused.reason != reason {
		in.Fatalf("refused for another reason: %s %v", refused.reason, refused.shown)
	}
	s.answer = refused.shown
}

func (s *story) one(r request) (map[string]any, *refusal, error) {
	s.calls++
	defer func() { s.header = [2]string{} }()
	return s.send(s.calls, s.key(s.caller), r)
}

// at returns a part of an answer as text. Steps of the path are fields, or positions in a list.
func at(answer any, path string) string {
	for step := range strings.SplitSeq(path, ".") {
		switch inside := answer.(type) {
		case map[string]any:
			answer = inside[step]
		case []any:
			if n, err := strconv.Atoi(step); err == nil && n < len(inside) {
				answer = inside[n]
				continue
			}
			return "nothing"
		default:
			return "nothing"
		}
	}
	if answer == nil {
		return "nothing"
	}
	return fmt.Sprint(answer)
}

func (s *story) checkAnswer(in *script) {
	path := in.take("the path")
	if got, want := at(s.answer, path), in.take("the value"); got != want {
		in.Fatalf("%s is %s, not %s, in %v", path, got, want, s.answer)
	}
}

// until repeats a call until its answer has a value.
func (s *story) until(in *script) {
	r, path, want := in.request(), in.take("the path"), in.take("the value")
	for end := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		answer, refused, err := s.one(r)
		in.Check(err)
		if s.answer = answer; refused == nil && at(s.answer, path) == want {
			return
		}
		if time.Now().After(end) {
			in.Fatalf("%s is not %s within %v: %v %v", path, want, patience, answer, refused)
		}
	}
}

// together makes a call for many callers at the same moment. Several calls, joined by "and", alternate; {n} numbers the
// callers of each call.
func (s *story) together(in *script) {
	callers, err := strconv.Atoi(in.take("the number of callers"))
	in.Check(err)
	var requests []request
	for joint := ""; joint == "" || len(in.args) > 0; joint = "and" {
		if joint != "" && in.take(joint) != joint || in.take("call") != "call" {
			in.Fatalf("write: together 100 call … and call …")
		}
		requests = append(requests, in.request())
	}
	key, begin := s.key(s.caller), make(chan struct{})
	var all sync.WaitGroup
	var mu sync.Mutex
	s.outcomes = map[string]int{}
	for n := range callers {
		turn, which := n/len(requests), n%len(requests)
		r := requests[which]
		r.body = strings.ReplaceAll(r.body, "{n}", strconv.Itoa(turn+1))
		all.Go(func() {
			<-begin
			outcome := s.decided(turn+which, key, r)
			mu.Lock()
			defer mu.Unlock()
			s.outcomes[outcome]++
		})
	}
	close(begin)
	all.Wait()
}

// decided makes a call until it has an answer: a caller that was told to try again does.
func (s *story) decided(server int, key string, r request) string {
	for end := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		answer, refused, err := s.send(server, key, r)
		switch {
		case err != nil:
			return err.Error()
		case refused == nil && answer["existed"] == true:
			return "existed"
		case refused == nil:
			return "succeeded"
		case refused.step != "NEXT_STEP_RETRY_SAME_KEY" || time.Now().After(end):
			return refused.reason
		}
	}
}

func (s *story) checkOutcomes(in *script) {
	var got []string
	for _, outcome := range slices.Sorted(maps.Keys(s.outcomes)) {
		got = append(got, fmt.Sprint(s.outcomes[outcome], " ", outcome))
	}
	want := strings.Split(in.take("the outcomes"), ", ")
	if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		in.Fatalf("outcomes: %s", strings.Join(got, ", "))
	}
}

// query runs SQL as a superuser, and returns its rows as psql -At shows them.
func (s *story) query(sql string) (rows string, err error) {
	conn, err := pgx.Connect(s.Context(), s.db.SuperDSN)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	results, err := conn.PgConn().Exec(s.Context(), sql).ReadAll()
	for _, result := range results {
		for _, row := range result.Rows {
			rows += string(bytes.Join(row, []byte("|"))) + "\n"
		}
	}
	return rows, err
}

// psql compares the rows with a text, or with a file of the script.
func (s *story) psql(in *script) {
	sql, want := in.take("the SQL"), in.take("the rows")
	if file, ok := strings.CutPrefix(want, "@"); ok {
		want = in.ReadFile(file)
	}
	rows, err := s.query(sql)
	in.Check(err)
	if strings.TrimSpace(rows) != strings.TrimSpace(want) {
		in.Fatalf("the rows are\n%s", rows)
	}
}

func (s *story) psqlFails(in *script) {
	rows, err := s.query(in.take("the SQL"))
	if err == nil {
		in.Fatalf("succeeded: %s", rows)
	}
	if part := in.take("part of the error"); !strings.Contains(err.Error(), part) {
		in.Fatalf("another error: %v", err)
	}
}
