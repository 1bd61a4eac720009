package rpc

import (
	"context"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/audit/v1"
	"github.com/ledgerd/ledgerd/internal/audit"
)

// Audit serves AuditService.
type Audit struct{ Reader *audit.Reader }

var settingKinds = map[pb.SettingKind]audit.Kind{
	pb.SettingKind_SETTING_KIND_ACCOUNT: audit.Account, pb.SettingKind_SETTING_KIND_ENDPOINT: audit.Endpoint,
	pb.SettingKind_SETTING_KIND_GATEWAY: audit.Gateway, pb.SettingKind_SETTING_KIND_KEY: audit.Key,
	pb.SettingKind_SETTING_KIND_LIMIT: audit.Limit, pb.SettingKind_SETTING_KIND_MACHINE: audit.Machine,
	pb.SettingKind_SETTING_KIND_POLICY: audit.Policy, pb.SettingKind_SETTING_KIND_SALE: audit.Sale,
	pb.SettingKind_SETTING_KIND_TEMPLATE: audit.Template, pb.SettingKind_SETTING_KIND_TENANT: audit.Tenant,
}

// kindOfSetting is the reverse of settingKinds.
var kindOfSetting = func() map[audit.Kind]pb.SettingKind {
	m := map[audit.Kind]pb.SettingKind{}
	for k, v := range settingKinds {
		m[v] = k
	}
	return m
}()

func (s *Audit) ListEvents(ctx context.Context, r *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	var d decoder
	f := audit.Filter{Kind: settingKinds[r.GetKind()], Name: r.GetName(), Principal: r.GetPrincipal()}
	f.From, f.Before = d.period(r.GetStartTime(), r.GetEndTime())
	if f.Name != "" && f.Kind == "" {
		d.bad("kind", "must be set with name")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	list, next, err := s.Reader.Events(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &pb.ListEventsResponse{NextPageToken: next}
	for i := range list {
		e, err := renderEvent(&list[i])
		if err != nil {
			return nil, err
		}
		res.Events = append(res.Events, e)
	}
	return res, nil
}

func renderEvent(e *audit.Event) (*pb.Event, error) {
	before, err := renderObject(e.Before)
	if err != nil {
		return nil, err
	}
	after, err := renderObject(e.After)
	return &pb.Event{Id: e.ID, Kind: kindOfSetting[e.Kind], Name: e.Name, Before: before, After: after,
		RecordTime: timestamp(e.At), Principal: e.Principal, KeyName: e.KeyID, RequestId: e.RequestID,
		DatabaseRole: e.DatabaseRole, ApprovedBy: e.ApprovedBy}, err
}

// renderObject returns nil for no object.
func renderObject(text json.RawMessage) (*structpb.Struct, error) {
	if len(text) == 0 {
		return nil, nil
	}
	s := &structpb.Struct{}
	return s, protojson.Unmarshal(text, s)
}
