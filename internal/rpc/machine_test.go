package rpc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// ticket is a machine: open, closed, and back.
func ticket(name, label string) *machinev1.DefineMachineRequest {
	return &machinev1.DefineMachineRequest{Machine: name, Definition: &machinev1.Definition{
		States: []*machinev1.State{{Name: "open", Label: label, ExternalCode: 10, Initial: true,
			Timer: &machinev1.Timer{After: durationpb.New(time.Hour), To: "closed", Reason: "no answer"}},
			{Name: "closed"}},
		Moves: []*machinev1.AllowedMove{
			{From: []string{"open"}, To: "closed", Require: []string{"reason"},
				By: []machinev1.Actor{machinev1.Actor_ACTOR_TIMER, machinev1.Actor_ACTOR_CALLER}},
			{From: []string{"closed"}, Back: true, Principals: []string{"colleague", "boss"}}}}}
}

func openTicket(key string) *machinev1.CreateInstanceRequest {
	return &machinev1.CreateInstanceRequest{Machine: "ticket", Key: key, Owner: "user:1"}
}

func moveTicket(key, to, cause string) *machinev1.MoveRequest {
	r := &machinev1.MoveRequest{Machine: "ticket", Key: key, To: to, Cause: cause, Reason: "why"}
	if to == "open" { // a move back
		r.From = "closed"
	}
	return r
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		ok(c, "Machine.DefineMachine", ticket("ticket", secretNote), new(machinev1.DefineMachineResponse), id...)
		create := openTicket(x.paid)
		create.Owner = secretNote
		ok(c, "Machine.CreateInstance", create, new(machinev1.CreateInstanceResponse), id...)
		answered := moveTicket(x.paid, "closed", "answer")
		answered.Reason = secretNote
		ok(c, "Machine.Move", answered, new(machinev1.MoveResponse), id...)
	})
	goWell = append(goWell, "Machine.DefineMachine", "Machine.ListMachines", "Machine.ListInstances")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Machine.DefineMachine": func(resources) []proto.Message { return all(ticket("ticket", "")) },
		"Machine.GetMachine": func(resources) []proto.Message {
			return all(&machinev1.GetMachineRequest{Machine: "ticket"},
				&machinev1.GetMachineRequest{Machine: "ticket", Version: 1})
		},
		"Machine.ListMachines": func(resources) []proto.Message { return all(&machinev1.ListMachinesRequest{}) },
		"Machine.GetDiagram": func(resources) []proto.Message {
			return all(&machinev1.GetDiagramRequest{Machine: "ticket"})
		},
		"Machine.CreateInstance": func(x resources) []proto.Message { return all(openTicket(x.paid)) },
		"Machine.Move":           func(x resources) []proto.Message { return all(moveTicket(x.paid, "open", "walk")) },
		"Machine.GetInstance": func(x resources) []proto.Message {
			return all(&machinev1.GetInstanceRequest{Machine: "ticket", Key: x.paid})
		},
		"Machine.ListInstances": func(resources) []proto.Message {
			return all(&machinev1.ListInstancesRequest{Machine: "ticket"},
				&machinev1.ListInstancesRequest{Machine: "ticket", State: "closed"},
				&machinev1.ListInstancesRequest{Machine: "ticket", Owner: secretNote})
		},
		"Machine.ListHistory": func(x resources) []proto.Message {
			return all(&machinev1.ListHistoryRequest{Machine: "ticket", Key: x.paid})
		},
	} {
		examples[name] = example
	}
	preparers["Machine"] = func(c *caller, tag string) {
		ok(c, "Machine.DefineMachine", ticket("ticket", ""), new(machinev1.DefineMachineResponse))
		ok(c, "Machine.CreateInstance", openTicket("old-"+tag), new(machinev1.CreateInstanceResponse))
	}
	for name, x := range map[string]change{
		"Machine.DefineMachine": {well: func(tag string) proto.Message {
			return ticket("ticket-"+strings.ToLower(tag), tag)
		}},
		"Machine.CreateInstance": {well: func(tag string) proto.Message { return openTicket("new-" + tag) }},
		"Machine.Move": {reason: "STATE_TAKEN", well: func(tag string) proto.Message {
			r := moveTicket("old-"+tag, "closed", "answer")
			r.Inputs = manyNames
			return r
		}, refused: func(tag string) proto.Message { return moveTicket("old-"+tag, "open", "again") }},
	} {
		changes[name] = x
	}
}

// machineSite returns a caller of a tenant with a machine of tickets.
func machineSite(t *testing.T) *caller {
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	ok(c, "Machine.DefineMachine", ticket("ticket", "待回复"), new(machinev1.DefineMachineResponse))
	return c
}

func TestMachineAndInstanceAreShownAsDefined(t *testing.T) {
	t.Parallel()
	c := machineSite(t)
	again := ok(c, "Machine.DefineMachine", ticket("ticket", "待回复"), new(machinev1.DefineMachineResponse))
	if !again.GetExisted() || again.GetMachine().GetVersion() != 1 {
		t.Errorf("%v", again)
	}
	m := ok(c, "Machine.GetMachine", &machinev1.GetMachineRequest{Machine: "ticket"},
		new(machinev1.GetMachineResponse)).GetMachine()
	want := ticket("ticket", "待回复").GetDefinition()
	want.Moves[0].By = []machinev1.Actor{machinev1.Actor_ACTOR_CALLER, machinev1.Actor_ACTOR_TIMER} // sorted
	want.Moves[1].Principals = []string{"boss", "colleague"}
	if !proto.Equal(m.GetDefinition(), want) || m.GetCreateTime() == nil || m.GetPrincipal() != "boss" {
		t.Errorf("%v", m)
	}
	ok(c, "Machine.DefineMachine", ticket("ticket", "other"), new(machinev1.DefineMachineResponse))
	ok(c, "Machine.DefineMachine", ticket("a", ""), new(machinev1.DefineMachineResponse))
	if m := ok(c, "Machine.GetMachine", &machinev1.GetMachineRequest{Machine: "ticket", Version: 1},
		new(machinev1.GetMachineResponse)).GetMachine(); m.GetDefinition().GetStates()[0].GetLabel() != "待回复" {
		t.Errorf("%v", m)
	}
	if a := c.call(connectJSON, "Machine.GetMachine",
		&machinev1.GetMachineRequest{Machine: "ticket", Version: 3}); a.Reason(t) != "MACHINE_NOT_FOUND" {
		t.Errorf("%s", a.Raw)
	}
	var listed []string
	for token := ""; ; {
		page := ok(c, "Machine.ListMachines", &machinev1.ListMachinesRequest{PageSize: 1, PageToken: token},
			new(machinev1.ListMachinesResponse))
		if n := len(page.GetMachines()); n != 1 {
			t.Errorf("a page of 1 has %d machines", n)
		}
		for _, m := range page.GetMachines() {
			listed = append(listed, fmt.Sprint(m.GetMachine(), "@", m.GetVersion()))
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if got := strings.Join(listed, " "); got != "a@1 ticket@2" {
		t.Errorf("machines %s", got)
	}
	diagram := ok(c, "Machine.GetDiagram", &machinev1.GetDiagramRequest{Machine: "ticket", Version: 1},
		new(machinev1.GetDiagramResponse)).GetMermaid()
	if want := `stateDiagram-v2
    state "待回复 (open)" as s_open
    state "closed" as s_closed
    [*] --> s_open
    s_open --> s_closed: caller, after 1h, with reason
    s_closed --> s_open: back, by boss, colleague
`; diagram != want {
		t.Errorf("%s", diagram)
	}
}

func TestInstancesAreListedAndTheirMovesToo(t *testing.T) {
	t.Parallel()
	c := machineSite(t)
	for i := range 7 {
		r := openTicket(fmt.Sprint("t", 7-i))
		r.Owner = fmt.Sprint("user:", i%2)
		ok(c, "Machine.CreateInstance", r, new(machinev1.CreateInstanceResponse))
	}
	for _, key := range []string{"t2", "t3"} {
		ok(c, "Machine.Move", moveTicket(key, "closed", "c"), new(machinev1.MoveResponse))
	}
	for _, x := range []struct{ state, owner, want string }{
		{"", "", "t1 t2 t3 t4 t5 t6 t7"}, {"open", "", "t7 t6 t5 t4 t1"}, {"closed", "", "t3 t2"},
		{"", "user:1", "t6 t4 t2"}, {"open", "user:1", "t6 t4"}, {"lost", "", ""}, {"", "user:2", ""},
	} {
		var keys []string
		for token := ""; ; {
			page := ok(c, "Machine.ListInstances", &machinev1.ListInstancesRequest{Machine: "ticket", State: x.state,
				Owner: x.owner, PageSize: 2, PageToken: token}, new(machinev1.ListInstancesResponse))
			for _, i := range page.GetInstances() {
				keys = append(keys, i.GetKey())
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if got := strings.Join(keys, " "); got != x.want {
			t.Errorf("state %q, owner %q: %s, not %s", x.state, x.owner, got, x.want)
		}
	}
	r := moveTicket("t2", "open", "again")
	r.Inputs = map[string]string{"by": "phone"}
	ok(c, "Machine.Move", r, new(machinev1.MoveResponse), "X-Request-Id", "req-7")
	var moves []string
	for token := ""; ; {
		page := ok(c, "Machine.ListHistory", &machinev1.ListHistoryRequest{Machine: "ticket", Key: "t2", PageSize: 2,
			PageToken: token}, new(machinev1.ListHistoryResponse))
		for _, e := range page.GetEntries() {
			moves = append(moves, fmt.Sprintf("%d %s>%s %s %s %s %v", e.GetRevision(), e.GetFrom(), e.GetTo(),
				e.GetActor(),
				e.GetCause(), e.GetReason(), e.GetInputs()))
			if e.GetPrincipal() != "boss" || e.GetRequestId() == "" || e.GetRecordTime() == nil {
				t.Errorf("%v", e)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if got := strings.Join(moves, "; "); got != "1 >open ACTOR_CALLER creation  map[]; "+
		"2 open>closed ACTOR_CALLER c why map[]; 3 closed>open ACTOR_CALLER again why map[by:phone]" {
		t.Errorf("%s", got)
	}
	i := ok(c, "Machine.GetInstance", &machinev1.GetInstanceRequest{Machine: "ticket", Key: "t2"},
		new(machinev1.GetInstanceResponse)).GetInstance()
	if i.GetState() != "open" || i.GetCameFrom() != "closed" || i.GetRevision() != 3 || i.GetCause() != "again" ||
		i.GetTimerTo() != "closed" || i.GetTimerTime() == nil || i.GetId() == 0 || i.GetVersion() != 1 {
		t.Errorf("%v", i)
	}
}

func TestMachinesInExecute(t *testing.T) {
	t.Parallel()
	c := machineSite(t)
	c.prepareLedger("a")
	moveOn := moveTicket("t1", "open", "reopened")
	got, existed := c.executed(execute(
		operation("", ticket("new", "")),
		operation("", &machinev1.CreateInstanceRequest{Machine: "new", Key: "n1"}),
		operation("made", openTicket("t1")),
		operation("closed", moveTicket("t1", "closed", "paid"), "revision=made:instance.revision"),
		operation("", moveOn, "revision=closed:instance.revision"),
		operation("", openTicket("t1")),
		operation("", pay("p", "u:a", "world", "1"))))
	if n := len(got); n != 7 || !existed[5] || existed[4] {
		t.Fatalf("%d results, existed %v", n, existed)
	}
	if i := got[4].(*machinev1.MoveResponse).GetInstance(); i.GetRevision() != 3 || i.GetState() != "open" {
		t.Errorf("%v", i)
	}
	// A refusal undoes everything, and names the operation.
	a := c.call(connectJSON, "Batch.Execute", execute(operation("", openTicket("t2")),
		operation("", moveTicket("t1", "closed", "x")), operation("stale", moveTicket("t2", "closed", "x"),
			"revision=other:instance.revision")))
	if a.Code != "invalid_argument" {
		t.Errorf("%s", a.Raw)
	}
	stale := moveTicket("t1", "closed", "x")
	stale.Revision = 2
	a = c.call(connectJSON, "Batch.Execute", execute(operation("", openTicket("t2")), operation("late", stale)))
	if a.Reason(t) != "STATE_CHANGED" || a.State("operation_name") != "late" || a.State("revision") != "3" ||
		a.State("state") != "open" {
		t.Errorf("%s", a.Raw)
	}
	if a := c.call(connectJSON, "Machine.GetInstance",
		&machinev1.GetInstanceRequest{Machine: "ticket", Key: "t2"}); a.Reason(t) != "INSTANCE_NOT_FOUND" {
		t.Errorf("%s", a.Raw)
	}
}

// A move with a reference publishes its event, if endpoints and limits are known only after the batch has begun.
func TestMovesInExecutePublish(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Server.Stop()
	s.Start(server.Options{Secret: secret.New()})
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for _, name := range []string{"shop", "crm"} {
		ok(c, "Webhook.CreateEndpoint", endpoint(name), new(notifyv1.CreateEndpointResponse))
	}
	if _, err := notify.PutLimit(t.Context(), s.Pool, c.tenant(), notify.Limit{Channel: send.Webhook,
		Scope: notify.PerRecipient, Window: time.Hour, MaxMessages: 2}); err != nil {
		t.Fatal(err)
	}
	m := ticket("ticket", "")
	m.Definition.Moves[0].Publish = "ticket.closed"
	ok(c, "Machine.DefineMachine", m, new(machinev1.DefineMachineResponse))
	openAndClose := func(key string) *batchv1.ExecuteRequest {
		return execute(operation("made", openTicket(key)),
			operation("", moveTicket(key, "closed", "c"), "revision=made:instance.revision"))
	}
	for n := range 2 {
		c.executed(openAndClose(fmt.Sprint(n)))
		if got := s.Count("select count(*) from notify_messages where business_type = 'ticket.closed'"); got != 2*(n+
			1) {
			t.Errorf("%d messages after %d moves", got, n+1)
		}
	}
	if a := c.call(connectJSON, "Batch.Execute", openAndClose("2")); a.Reason(t) != "NOTIFY_LIMITED" {
		t.Errorf("%s", a.Raw)
	}
	if n := s.Count("select count(*) from machine_instances"); n != 2 {
		t.Errorf("%d instances", n)
	}
}

// The moves of one Execute, and the overdue timers of one Move, may publish events of many types.
func TestOneCallPublishesManyTypes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Server.Stop()
	s.Start(server.Options{Secret: secret.New()})
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for _, name := range []string{"shop", "crm"} {
		ok(c, "Webhook.CreateEndpoint", endpoint(name), new(notifyv1.CreateEndpointResponse))
	}
	const steps = 8
	state := func(n int) string { return fmt.Sprint("s", n) }
	m := &machinev1.DefineMachineRequest{Machine: "ticket", Definition: &machinev1.Definition{
		States: []*machinev1.State{{Name: "s0", Initial: true}}}}
	for n := range steps {
		m.Definition.States = append(m.Definition.States, &machinev1.State{Name: state(n + 1)})
		m.Definition.Moves = append(m.Definition.Moves,
			&machinev1.AllowedMove{From: []string{state(n)}, To: state(n + 1),
				Publish: "ticket." + state(n+1),
				By:      []machinev1.Actor{machinev1.Actor_ACTOR_TIMER, machinev1.Actor_ACTOR_CALLER}})
	}
	ok(c, "Machine.DefineMachine", m, new(machinev1.DefineMachineResponse))
	operations := []*batchv1.Operation{operation("", openTicket("called"))}
	for n := range steps {
		operations = append(operations, operation("", moveTicket("called", state(n+1), "c")))
	}
	c.executed(execute(operations...))
	sent := func() int { return s.Count("select count(*) from notify_messages where business_type like 'ticket.%'") }
	if n := sent(); n != 2*steps {
		t.Errorf("%d messages, want %d", n, 2*steps)
	}
	for n := range steps - 1 {
		m.Definition.States[n].Timer = &machinev1.Timer{After: durationpb.New(time.Second), To: state(n + 1)}
	}
	ok(c, "Machine.DefineMachine", m, new(machinev1.DefineMachineResponse))
	ok(c, "Machine.CreateInstance", openTicket("timed"), new(machinev1.CreateInstanceResponse))
	servertest.Eventually(t, 60*time.Second, "its timers fire", func() bool { return sent() == 2*steps+2*(steps-1) })
}

func TestMachineErrorsNameTheField(t *testing.T) {
	t.Parallel()
	c := machineSite(t)
	unreachable := ticket("ticket", "")
	unreachable.Definition.States = append(unreachable.Definition.States, &machinev1.State{Name: "lost"})
	noTimer := ticket("ticket", "")
	noTimer.Definition.Moves[0].By = nil
	two := ticket("ticket", "")
	two.Definition.Moves[0].To = ""
	ok(c, "Machine.CreateInstance", openTicket("t1"), new(machinev1.CreateInstanceResponse))
	without := moveTicket("t1", "closed", "c")
	without.Reason = ""
	mistyped := moveTicket("t1", "closed", "c")
	mistyped.From = "opne"
	reserved, wide := moveTicket("t1", "closed", "timer"), openTicket(strings.Repeat("長", 43))
	for what, x := range map[string]struct {
		call          string
		request       proto.Message
		reason, field string
	}{
		"a state that is not reached": {"Machine.DefineMachine", unreachable, "MACHINE_INVALID",
			"definition.states[2].name"},
		"a timer that is not allowed": {"Machine.DefineMachine", noTimer, "MACHINE_INVALID",
			"definition.states[0].timer.to"},
		"a move to nowhere": {"Machine.DefineMachine", two, "MACHINE_INVALID",
			"definition.moves[0].to"},
		"a required input":                  {"Machine.Move", without, "MOVE_INPUT_MISSING", "reason"},
		"a reserved cause":                  {"Machine.Move", reserved, "FIELD_INVALID", "cause"},
		"a key of 129 bytes":                {"Machine.CreateInstance", wide, "FIELD_INVALID", "key"},
		"a key with a control character":    {"Machine.CreateInstance", openTicket("a\n"), "FIELD_INVALID", "key"},
		"a mistyped state":                  {"Machine.Move", mistyped, "FIELD_INVALID", "from"},
		"a state that is not the machine's": {"Machine.Move", moveTicket("t1", "lost", "c"), "FIELD_INVALID", "to"},
	} {
		a := c.call(connectProto, x.call, x.request)
		bad, _ := servertest.Detail(a.Answer, new(errdetails.BadRequest))
		if f := bad.GetFieldViolations(); a.Reason(t) != x.reason || len(f) == 0 || f[0].GetField() != x.field {
			t.Errorf("%s: %s %s %v", what, a.Code, a.Message, f)
		}
	}
	a := c.call(connectJSON, "Machine.Move", moveTicket("t1", "open", "c"))
	if a.Reason(t) != "STATE_TAKEN" || a.State("label") != "待回复" || a.State("revision") != "1" {
		t.Errorf("%s", a.Raw)
	}
}
