import pytest

from appsettings import BadValue, MissingSetting, SettingError, Settings

SETTINGS = Settings({"retries": "three", "port": "8080", "debug": "Yes", "colour": "maybe"})


@pytest.mark.parametrize("read", ["get", "get_int", "get_bool"])
def test_missing_name(read):
    with pytest.raises(MissingSetting, match="setting 'absent': "):
        getattr(SETTINGS, read)("absent")


def test_missing_name_is_still_a_key_error():
    with pytest.raises(KeyError) as caught:
        SETTINGS.get("absent")
    assert isinstance(caught.value, SettingError)
    assert "'absent'" in str(caught.value)


def test_bad_integer_names_setting_and_value():
    with pytest.raises(BadValue, match="'retries'.*'three'") as caught:
        SETTINGS.get_int("retries")
    assert isinstance(caught.value.__cause__, ValueError)


def test_bad_truth_value():
    with pytest.raises(BadValue, match="'colour'"):
        SETTINGS.get_bool("colour")


def test_good_values():
    assert SETTINGS.get("port") == "8080"
    assert SETTINGS.get_int("port") == 8080
    assert SETTINGS.get_bool("debug") is True


@pytest.mark.parametrize("default", [None, 0, "x"])
def test_defaults(default):
    assert SETTINGS.get("absent", default) is default
    assert SETTINGS.get_int("absent", default) is default
    assert SETTINGS.get_bool("absent", default) is default
