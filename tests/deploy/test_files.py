"""Files in deploy/ can be read, and mean what exists: settings, ports, commands, files."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from leveret.config import Configuration, load
from leveret.config.cluster import parse_connect_string
from leveret.config.environment import CONFIG_VARIABLE
from tests.support.commands import check_command

REPOSITORY = Path(__file__).parent.parent.parent
DEPLOY = REPOSITORY / "deploy"
IMAGE_SETTINGS = DEPLOY / "docker" / "leveret.toml"
YAML = sorted([*DEPLOY.rglob("*.yml"), *DEPLOY.rglob("*.yaml")])
JSON = sorted(DEPLOY.rglob("*.json"))
PORTS = {
    name: Configuration.model_fields[name].default
    for name in ("port", "tls_port", "http_port", "prometheus_port")
}


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def config_map():
    return kubernetes("ConfigMap")["leveret"]["data"]["leveret.toml"]


def rendered(directory, kind):
    """All objects of one kind that `kubectl apply -k` would create, by name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", directory], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    objects = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == kind]
    return {each["metadata"]["name"]: each for each in objects}


def kubernetes(kind):
    """All objects of one kind, by name."""
    found = [
        document
        for path in (DEPLOY / "kubernetes").glob("*.yaml")
        for document in documents(path)
        if document["kind"] == kind
    ]
    return {document["metadata"]["name"]: document for document in found}


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_read(path):
    assert documents(path)


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.name)
def test_json_is_read(path):
    assert json.loads(path.read_text())


def test_settings_exist():
    """Every `LEVERET_…` variable, and every line of the ConfigMap."""
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        for name in re.findall(r"\bLEVERET_([A-Z_]+)\b", path.read_text()):
            known = (
                name.lower() in Configuration.model_fields or f"LEVERET_{name}" == CONFIG_VARIABLE
            )
            assert known, (path, name)
    for text in (config_map(), IMAGE_SETTINGS.read_text()):
        Configuration(**tomllib.loads(text))


def test_image_sets_nothing_that_a_mounted_file_could_not_change():
    """Variables beat the file: only where the file and the data are stands in some."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    variables = set(re.findall(r"\b(LEVERET_[A-Z_]+)=", text))
    assert variables == {"LEVERET_CONFIG", "LEVERET_DATA_DIR"}
    assert re.search(r"LEVERET_CONFIG=(\S+)", text)[1] == "/etc/leveret/leveret.toml"
    assert "COPY deploy/docker/leveret.toml /etc/leveret/leveret.toml" in text


def test_containers_answer_on_every_address():
    """Whose loopback is nobody's: probes and published ports come from elsewhere."""
    for text in (config_map(), IMAGE_SETTINGS.read_text()):
        settings = tomllib.loads(text)
        hosts = {settings[name] for name in ("host", "http_host", "prometheus_host")}
        assert hosts == {"0.0.0.0"}


def test_steps_make_an_administrator_before_anything_else():
    text = (DEPLOY / "README.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:4]:
        first = section[section.index("user add") :].splitlines()[0]
        assert "--tag administrator" in first, section


def test_failing_starts_are_given_up():
    unit = (DEPLOY / "systemd" / "leveret.service").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    assert int(values["StartLimitBurst"]) * float(values["RestartSec"].removesuffix("s")) < 600
    assert values["StartLimitIntervalSec"] == "10min"


def test_image_that_was_loaded_into_the_machine_is_used():
    (stateful,) = kubernetes("StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    assert container["imagePullPolicy"] == "IfNotPresent"


def test_stall_of_minutes_is_no_restart():
    (stateful,) = kubernetes("StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600


def test_management_is_not_open_to_the_whole_cluster():
    (policy,) = kubernetes("NetworkPolicy").values()
    for rule in policy["spec"]["ingress"]:
        if "from" not in rule:
            assert [port["port"] for port in rule["ports"]] == ["amqp"]


def commands_in(path):
    """Command lines of ours: in code blocks of Markdown, in unit files, in alerts."""
    text = path.read_text()
    found = re.findall(r"^\s*(?:\$ |sudo |# *)?(?:\S*/)?(leveret [a-z].*)$", text, re.MULTILINE)
    found += re.findall(r"`(leveret [a-z][^`]*)`", text)
    found += re.findall(r"\bexec .*?\bleveret (leveret [^`\n]*)", text)
    found += [match.replace("\n", " ") for match in re.findall(r"ExecStart=\S*/(leveret .*)", text)]
    return found


TEXTS = sorted(path for path in DEPLOY.rglob("*") if path.suffix in {".md", ".service", ".yml"})


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_exist(path):
    for line in commands_in(path):
        check_command(line)


def test_commands_are_found_at_all():
    assert len([line for path in TEXTS for line in commands_in(path)]) > 5


@pytest.mark.usefixtures("processes")
def test_unit_is_valid(tmp_path):
    """But for the path of the command, which is not there yet."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = (DEPLOY / "systemd" / "leveret.service").read_text()
    checked = tmp_path / "leveret.service"
    checked.write_text(unit.replace("/opt/leveret/bin/leveret", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", checked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_container_serves_on_the_ports_it_exposes():
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    exposed = re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)[1].split()
    assert sorted(map(int, exposed)) == sorted(PORTS.values())
    check_command(
        "leveret " + " ".join(json.loads(re.search(r"CMD (\[\"leveret.*\])", text)[1])[1:])
    )
    for source in re.findall(r"^COPY ((?:[^-].*))$", text, re.MULTILINE):
        for name in source.split()[:-1]:
            assert (REPOSITORY / name).exists(), name


COMPOSED = sorted((DEPLOY / "docker").glob("docker-compose*.yml"))


@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.stem)
def test_compose_mounts_what_is_there(path):
    directory = DEPLOY / "docker"
    (compose,) = documents(path)
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            known = source in compose["volumes"] or (directory / source).exists()
            assert known, (name, source)
    built = [service["build"] for service in compose["services"].values() if "build" in service]
    assert built
    for build in built:
        assert (directory / build["context"] / build["dockerfile"]).exists()


def check_cluster(environments):
    """Nodes whose settings are that image's and these are those of one cluster."""
    found = [load(IMAGE_SETTINGS, environ=each).configuration for each in environments]
    assert [settings.node_id for settings in found] == [0, 1, 2]
    assert len({settings.cluster for settings in found}) == 1
    assert parse_connect_string(found[0].cluster).root == "/leveret"
    assert len({settings.advertised for settings in found}) == 3
    assert {settings.cluster_address for settings in found} == {("0.0.0.0", 25672)}


def test_compose_starts_a_cluster():
    (compose,) = documents(DEPLOY / "docker" / "docker-compose.cluster.yml")
    services = compose["services"]
    nodes = [name for name in services if name.startswith("node")]
    check_cluster([services[name]["environment"] for name in nodes])
    for number, name in enumerate(nodes):
        assert services[name]["environment"]["LEVERET_ADVERTISE"] == name
        published = [port.split(":")[1:] for port in services[name]["ports"]]
        assert published == [[str(5672 + number), "5672"], [str(15672 + number), "15672"]]
    assert "zookeeper" in services


def environment_of(container, pod, number):
    """The variables of a container in a pod, as Kubernetes sets them."""
    fields = {
        "metadata.name": pod,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        "spec.nodeName": f"machine-{number}",
    }
    found = {}
    for variable in container["env"]:
        value = variable.get("value")
        if value is None:
            value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return {name: value for name, value in found.items() if name.startswith("LEVERET")}


@pytest.mark.usefixtures("processes")
def test_kubernetes_starts_a_cluster():
    directory = DEPLOY / "kubernetes-cluster"
    (stateful,) = rendered(directory, "StatefulSet").values()
    spec = stateful["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pods = [f"leveret-{number}" for number in range(spec["replicas"])]
    environments = [environment_of(container, pod, n) for n, pod in enumerate(pods)]
    check_cluster(environments)
    service = rendered(directory, "Service")[spec["serviceName"]]
    assert service["spec"]["clusterIP"] == "None"
    assert environments[2]["LEVERET_ADVERTISE"] == f"leveret-2.{spec['serviceName']}"
    assert environments[1]["LEVERET_RACK"] == "machine-1"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["cluster"] == Configuration.model_fields["cluster_port"].default
    for probe in ("startupProbe", "livenessProbe"):
        check_command(" ".join(container[probe]["exec"]["command"]))
    (budget,) = rendered(directory, "PodDisruptionBudget").values()
    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]
    (policy,) = rendered(directory, "NetworkPolicy").values()
    (rule,) = [one for one in policy["spec"]["ingress"] if one["ports"] == [{"port": "cluster"}]]
    (selector,) = [one["podSelector"]["matchLabels"] for one in rule["from"]]
    assert selector.items() <= spec["template"]["metadata"]["labels"].items()


def test_kubernetes_objects_fit_together():
    (stateful,) = kubernetes("StatefulSet").values()
    template = stateful["spec"]["template"]
    labels = template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "amqp": PORTS["port"],
        "http": PORTS["http_port"],
        "metrics": PORTS["prometheus_port"],
    }
    services = kubernetes("Service")
    assert stateful["spec"]["serviceName"] in services
    selectors = [service["spec"]["selector"] for service in services.values()]
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selectors += [each["spec"][key]["matchLabels"] for each in kubernetes(kind).values()]
    selectors.append(stateful["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    for service in services.values():
        assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert mounts == volumes
    check_command("leveret " + " ".join(container["args"]))
    (kustomization,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    present = {path.name for path in (DEPLOY / "kubernetes").iterdir()} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == present


def test_probes_ask_what_is_answered_without_a_password():
    (stateful,) = kubernetes("StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert path in {
            "/api/health/checks/is-in-service",
            "/api/health/checks/ready-to-serve-clients",
        }


@pytest.mark.usefixtures("processes")
def test_tls_of_amqp_is_the_node_s():
    directory = DEPLOY / "kubernetes-tls"
    (stateful,) = rendered(directory, "StatefulSet").values()
    template = stateful["spec"]["template"]["spec"]
    (container,) = template["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["amqps"] == PORTS["tls_port"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (volume,) = [volume for volume in template["volumes"] if volume["name"] == "tls"]
    files = {f"{mounts['tls']}/{name}" for name in ("tls.crt", "tls.key")}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert files == {
        variables["LEVERET_TLS_CERTIFICATE_FILE"],
        variables["LEVERET_TLS_KEY_FILE"],
    }
    text = (DEPLOY / "README.md").read_text()
    assert f"create secret tls {volume['secret']['secretName']} " in text
    served = {port["name"] for port in rendered(directory, "Service")["leveret"]["spec"]["ports"]}
    assert {"amqp", "amqps", "http"} == served
    (policy,) = rendered(directory, "NetworkPolicy").values()
    for rule in policy["spec"]["ingress"]:
        if "from" not in rule:
            assert [port["port"] for port in rule["ports"]] == ["amqps"]
    reachable = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert reachable == set(ports)


@pytest.mark.usefixtures("processes")
def test_ingress_leads_to_the_web_ui_with_tls():
    directory = DEPLOY / "kubernetes-tls"
    (ingress,) = rendered(directory, "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    (tls,) = ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]
    assert f"create secret tls {tls['secretName']} " in (DEPLOY / "README.md").read_text()
    (path,) = rule["http"]["paths"]
    service = rendered(directory, "Service")[path["backend"]["service"]["name"]]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports[path["backend"]["service"]["port"]["name"]] == PORTS["http_port"]
    (policy,) = kubernetes("NetworkPolicy").values()
    assert any(
        "ingress-nginx" in json.dumps(rule.get("from")) and rule["ports"] == [{"port": "http"}]
        for rule in policy["spec"]["ingress"]
    )
